"""A private PostgreSQL from a wheel, for the demo, the tests and the benchmarks; runs for ordinary users and for root."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote, urlencode

import psycopg
from psycopg.sql import SQL

from penstock.embedded.guard import start_guarded
from penstock.embedded.installation import DEFAULT_BUILD, ENVIRONMENT, Build, Installation
from penstock.errors import SourceFailed

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_DEFAULTS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "listen_addresses": "127.0.0.1",
}
# A unix socket's path may have 107 bytes, so its directory cannot live wherever the data does.
_SOCKET_ROOT = "/tmp" if os.path.isdir("/tmp") else None


class EmbeddedPostgres:
    """One PostgreSQL server on a free loopback port; it ends with `stop`, with the block, or with this process."""

    host = "127.0.0.1"
    user = "postgres"

    def __init__(
        self,
        directory: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
        hba: Sequence[str] = (),
        own_identity: bool = False,
        build: Build = DEFAULT_BUILD,
    ) -> None:
        """`directory` is kept, without one a temporary one is made and removed; `hba` lines come before our own.

        Clusters are copies of one template and share its system identifier unless `own_identity` is asked for.
        """
        self.port = 0
        self.password = password or secrets.token_urlsafe(12)
        self.settings = {**_DEFAULTS, **(settings or {})}
        self._asked, self._hba, self._own_identity = directory, tuple(hba), own_identity
        self._installation = Installation.find(build)
        self._base: Path | None = None
        self._sockets: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self.postmaster = 0

    @property
    def data_directory(self) -> Path:
        """The cluster itself (PGDATA)."""
        return self._directory() / "data"

    @property
    def log_path(self) -> Path:
        """The file the server logs to."""
        return self._directory() / "server.log"

    @property
    def socket_directory(self) -> Path:
        """Where the unix socket is; nobody but the server's user and root can enter it."""
        if self._sockets is None:
            raise SourceFailed("the embedded PostgreSQL is not running")
        return self._sockets

    def binary(self, name: str) -> Path:
        """The path of a program of the installation, such as `psql`, `pgbench` or `pg_recvlogical`."""
        path = self._installation.path / "bin" / name
        if not path.exists():
            raise SourceFailed(f"the embedded PostgreSQL has no program {name}")
        return path

    def dsn(self, dbname: str = "postgres", user: str | None = None, **extra: str | int) -> str:
        """A connection URL; `extra` are libpq parameters, `password` replaces the superuser's."""
        password = extra.pop("password", self.password if user in (None, self.user) else "")
        secret = f":{quote(str(password), safe='')}" if password else ""
        query = f"?{urlencode(extra)}" if extra else ""
        return f"postgresql://{quote(user or self.user, safe='')}{secret}@{self.host}:{self.port}/{quote(dbname, safe='')}{query}"

    def run(self, sql: str, dbname: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as superuser outside a transaction; the rows of its answer, if it has any."""
        with psycopg.connect(self.dsn(dbname), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> Self:
        """Start the server and wait until it accepts connections; a running one is left alone."""
        if self.is_running():
            return self
        if not (self.data_directory / "PG_VERSION").exists():
            self._installation.create(self.data_directory, own_identity=self._own_identity)
            self._configure()
        for attempts_left in (4, 3, 2, 1, 0):
            self.port = self.port or _free_port()
            try:
                self._launch()
                break
            except SourceFailed as failure:
                # Between choosing a free port and binding it somebody else may have taken it.
                if "could not bind" not in failure.message or not attempts_left:
                    raise
                self.port = 0
        return self

    def is_running(self) -> bool:
        """Whether the server's process is there."""
        return self._guard is not None and self._guard.poll() is None

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end; a temporary directory goes with it."""
        if os.getpid() != self._owner:
            return
        if self.is_running():
            self._signal(mode)
        self._forget()
        if self._asked is None and self._base is not None:
            shutil.rmtree(self._base, ignore_errors=True)
            self._base = None

    def restart(self, mode: StopMode = "fast", settings: Mapping[str, str] | None = None) -> None:
        """Stop and start the server on the same port and data, with `settings` changed."""
        if self.is_running():
            self._signal(mode)
        self._forget()
        self.settings.update(settings or {})
        self._configure()
        self.start()

    def kill(self) -> None:
        """End the server as a power cut would: SIGKILL to all its processes; `start` recovers it."""
        if self._guard is None or not self.is_running():
            return
        family = _children(self.postmaster)
        for process in (self.postmaster, *family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._guard.wait()
        # A new postmaster refuses to start while a backend of the old one holds the shared memory.
        _wait_until_gone(family)
        self._forget()

    def reload(self) -> None:
        """Make the server read its configuration and pg_hba.conf again."""
        os.kill(self.postmaster, signal.SIGHUP)

    def install(self, name: str, content: bytes) -> Path:
        """Write a file into the data directory as the server wants it: its own, mode 0600 (certificates, keys)."""
        path = self.data_directory / name
        path.write_bytes(content)
        path.chmod(0o600)
        self._installation.give(path)
        return path

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _directory(self) -> Path:
        if self._base is None:
            if self._asked is None:
                self._base = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
            else:
                self._base = self._asked.absolute()
                self._base.mkdir(parents=True, exist_ok=True)
            self._installation.give(self._base)
            self._installation.require_reach(self._base)
        return self._base

    def _configure(self) -> None:
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in self.settings.items()]
        self.install("postgresql.conf", "".join(lines).encode())
        rules = [
            *self._hba,
            "local all all trust",
            "local replication all trust",
            "host all all 127.0.0.1/32 scram-sha-256",
            "host replication all 127.0.0.1/32 scram-sha-256",
        ]
        self.install("pg_hba.conf", "".join(f"{rule}\n" for rule in rules).encode())

    def _launch(self) -> None:
        self._sockets = Path(tempfile.mkdtemp(prefix="pspg-", dir=_SOCKET_ROOT))
        self._installation.give(self._sockets)
        options = {"port": str(self.port), "unix_socket_directories": str(self._sockets)}
        command = [str(self.binary("postgres")), "-D", str(self.data_directory)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        account = self._installation.account
        temporary = [self._sockets] if self._asked else [self._sockets, self._directory()]
        position = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._guard, self.postmaster = start_guarded(
            command,
            log=self.log_path,
            env=ENVIRONMENT,
            cwd="/",
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            signals=(signal.SIGINT, signal.SIGQUIT),
            grace=3.0,
            remove=temporary,
        )
        atexit.register(self.stop)
        self._wait_ready(position)
        if (self.data_directory / "standby.signal").exists():
            return  # its roles are those of its primary
        # The socket is behind a private directory, so the password can be set through it before anybody knows it.
        with psycopg.connect(host=str(self._sockets), port=self.port, user=self.user, dbname="postgres") as connection:
            connection.execute(SQL("ALTER ROLE postgres PASSWORD {}").format(self.password))

    def _wait_ready(self, position: int) -> None:
        assert self._guard is not None
        deadline = time.monotonic() + 60
        status = self.data_directory / "postmaster.pid"
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                lines = status.read_text().splitlines()
                # A file that a killed server left behind says "ready" too, under another process id.
                if len(lines) >= 8 and int(lines[0]) == self.postmaster and lines[7].strip() in ("ready", "standby"):
                    return
            if self._guard.poll() is not None:
                break
            time.sleep(0.01)
        with self.log_path.open("rb") as log:
            log.seek(position)
            tail = log.read().decode(errors="replace").strip().splitlines()[-8:]
        if self.is_running():
            self._signal("immediate")
        self._forget()
        reason = "\n".join(tail) or "it wrote nothing to its log"
        raise SourceFailed(
            f"the embedded PostgreSQL did not start: {reason}", remedy="Correct its settings or directory as its log says."
        )

    def _signal(self, mode: StopMode) -> None:
        assert self._guard is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.postmaster, _SIGNALS[mode])
        try:
            self._guard.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def _forget(self) -> None:
        atexit.unregister(self.stop)
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
        self._guard, self._sockets, self.postmaster = None, None, 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _children(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def _wait_until_gone(processes: Sequence[int], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(_is_alive(process) for process in processes):
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    # A dead process stays as a zombie until init collects it, which can take a second; its memory is gone by then.
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
