"""One dsn means the same to both connections: the replication socket of our own, and the control connection of libpq."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import PenstockError, SourceError, SourceRefused
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.wire import ReplicationConnection
from tests.processes import wait_until
from tests.sources.postgres.secure import Authority, SecureServer, secure_server

Ask = Callable[[str, str], str | None]
"""The single value that a query gives on a new connection made with a dsn."""


def by_replication(dsn: str, sql: str) -> str | None:
    with ReplicationConnection.connect(dsn) as connection:
        [(value,)] = connection.query(sql)
        return value


def by_control(dsn: str, sql: str) -> str | None:
    control = Control(dsn, "flow")
    try:
        [row] = control.rows(sql)
        (value,) = row.values()
        return None if value is None else str(value)
    finally:
        control.close()


@pytest.fixture(params=[by_replication, by_control], ids=["replication", "control"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and nothing of the caller's own settings."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("login") / "authority")


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[SecureServer]:
    with secure_server(authority, *authority.issue("localhost", "DNS:localhost,IP:127.0.0.1")) as server:
        yield server


@pytest.fixture(scope="module")
def read_only(penstock_home: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings={"fsync": "off"}, password="sesame") as server:
        server.run("ALTER SYSTEM SET default_transaction_read_only = on")
        server.reload()
        wait_until(lambda: server.run("SHOW default_transaction_read_only") == [("on",)])
        yield server


@pytest.fixture(scope="module")
def writable(penstock_home: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings={"fsync": "off"}, password="sesame") as server:
        yield server


def dsn(secure: SecureServer, user: str, **options: str | Path) -> str:
    texts: dict[str, str | Path] = {"host": "127.0.0.1", "port": str(secure.port), "user": user, "dbname": "postgres"}
    if user == "scrammed":
        texts["password"] = "sesame"
    return " ".join(f"{name}='{value}'" for name, value in {**texts, **options}.items())


TLS = "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


def test_a_private_authority_is_verified_in_full(secure: SecureServer, authority: Authority, ask: Ask, tmp_path: Path) -> None:
    for host in ("localhost", "127.0.0.1"):
        verified = dsn(secure, "scrammed", host=host, sslmode="verify-full", sslrootcert=authority.certificate)
        assert ask(verified, TLS) == "TLSv1.3"
    other = {"sslmode": "verify-full", "hostaddr": "127.0.0.1"}
    with pytest.raises(SourceRefused, match=r"other\.test"):
        ask(dsn(secure, "scrammed", host="other.test", sslrootcert=authority.certificate, **other), TLS)
    stranger = Authority(tmp_path / "stranger").certificate
    with pytest.raises(SourceRefused, match="certificate"):
        ask(dsn(secure, "scrammed", host="localhost", sslrootcert=stranger, **other), TLS)


@pytest.mark.parametrize("binding", ["require", "prefer", "disable"])
def test_scram_works_with_and_without_channel_binding(secure: SecureServer, ask: Ask, binding: str) -> None:
    bound = dsn(secure, "scrammed", sslmode="require", channel_binding=binding, require_auth="scram-sha-256")
    assert ask(bound, "SELECT current_user::text") == "scrammed"


def test_required_channel_binding_is_insisted_on(secure: SecureServer, ask: Ask, writable: EmbeddedPostgres) -> None:
    with pytest.raises(SourceRefused, match=r"channel.binding"):
        ask(dsn(secure, "trusting", sslmode="require", channel_binding="require"), TLS)
    with pytest.raises(SourceRefused, match=r"channel.binding"):
        ask(writable.dsn(channel_binding="require"), TLS)


def test_a_client_certificate_logs_in(secure: SecureServer, authority: Authority, ask: Ask) -> None:
    certificate, key = authority.issue("certified")
    options = {"sslcert": certificate, "sslkey": key, "sslrootcert": authority.certificate}
    assert ask(dsn(secure, "certified", sslmode="verify-full", **options), "SELECT current_user::text") == "certified"
    with pytest.raises(SourceRefused, match="certificate"):
        ask(dsn(secure, "certified", sslmode="require"), TLS)


def test_a_password_file_is_used(writable: EmbeddedPostgres, ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_dsn = f"host=127.0.0.1 port={writable.port} user=postgres dbname=postgres"
    with pytest.raises(SourceRefused, match="password"):
        ask(open_dsn, "SELECT 1")
    path = home / "passwords"
    path.write_text(f"127.0.0.1:{writable.port}:*:postgres:sesame\n")
    path.chmod(0o600)
    assert ask(f"{open_dsn} passfile='{path}'", "SELECT 1") == "1"
    monkeypatch.setenv("PGPASSFILE", str(path))
    assert ask(open_dsn, "SELECT 1") == "1"


def test_a_service_stands_for_what_the_dsn_leaves_open(
    writable: EmbeddedPostgres, ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {"host": "127.0.0.1", "port": writable.port, "user": "postgres", "password": "sesame", "dbname": "template1"}
    lines |= {"application_name": "of the service", "options": "-c work_mem=5MB -c timezone=Asia/Tokyo"}
    path = home / "services"
    path.write_text("[shop]\n" + "".join(f"{name}={value}\n" for name, value in lines.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(path))
    said = "SELECT concat_ws(', ', current_database(), current_setting('application_name'), current_setting('work_mem'))"
    assert ask("service=shop", said) == "template1, of the service, 5MB"
    assert ask("service=shop dbname=postgres", said) == "postgres, of the service, 5MB"
    # Whatever the service's options are, the session that reads values is pinned.
    assert ask("service=shop", "SELECT current_setting('timezone')") == "UTC"
    monkeypatch.setenv("PGSERVICE", "shop")
    assert ask("dbname=postgres", said) == "postgres, of the service, 5MB"
    with pytest.raises(PenstockError, match="nowhere"):
        ask("service=nowhere", said)


@pytest.mark.parametrize(("kind", "index"), [("read-write", 1), ("read-only", 0), ("any", 0), ("primary", 0)])
def test_the_same_host_of_several_is_chosen(
    read_only: EmbeddedPostgres, writable: EmbeddedPostgres, ask: Ask, kind: str, index: int
) -> None:
    servers = (read_only, writable)
    hosts = f"127.0.0.1:1,127.0.0.1:{read_only.port},127.0.0.1:{writable.port}"
    several = f"postgresql://postgres:sesame@{hosts}/postgres?target_session_attrs={kind}"
    assert ask(several, "SELECT current_setting('port')") == str(servers[index].port)


def test_a_kind_that_no_host_is_of_is_said_so(read_only: EmbeddedPostgres, ask: Ask) -> None:
    alone = read_only.dsn(target_session_attrs="read-write")
    with pytest.raises(SourceError, match=r"read-only|read-write"):
        ask(alone, "SELECT 1")


def test_the_control_connection_may_write_on_a_server_that_is_read_only_by_default(read_only: EmbeddedPostgres) -> None:
    assert by_control(read_only.dsn(), "SELECT current_setting('transaction_read_only')") == "off"
    with psycopg.connect(read_only.dsn(), autocommit=True) as plain:
        assert plain.execute("SHOW transaction_read_only").fetchall() == [("on",)]
