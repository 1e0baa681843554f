"""TLS by sslmode, certificates on both sides and channel binding, against a server that has TLS compiled in."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import ProtocolBroken, SourceRefused, SourceUnreachable
from penstock.sources.postgres.wire import ReplicationConnection
from tests.raw_stream import DEADLINE, check_statuses_beside_reading, is_row, read_frames
from tests.sources.postgres.secure import Authority, SecureServer, secure_server

Options = dict[str, str | Path]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def served(authority: Authority) -> tuple[Path, Path]:
    return authority.issue("localhost", "DNS:localhost,DNS:*.db.test,IP:127.0.0.1")


@pytest.fixture(scope="module")
def server(authority: Authority, served: tuple[Path, Path]) -> Iterator[SecureServer]:
    with secure_server(authority, *served) as server:
        yield server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an empty ~/.postgresql."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".postgresql").mkdir()
    return tmp_path / ".postgresql"


def connect(server: SecureServer, user: str, host: str = "127.0.0.1", /, **options: str | Path) -> ReplicationConnection:
    texts = {"host": host, "port": str(server.port), "user": user, "dbname": "postgres"}
    if user == "scrammed":
        texts["password"] = "sesame"
    texts |= {name: str(value) for name, value in options.items()}
    return ReplicationConnection.connect(" ".join(f"{name}='{value}'" for name, value in texts.items()))


def encryption(connection: ReplicationConnection) -> str | None:
    """The TLS version of the session, as the server sees it; None without TLS."""
    [(version,)] = connection.query("SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    connection.end()
    return version


@pytest.mark.parametrize("mode", ["allow", "prefer", "require"])
def test_modes_without_a_check_encrypt_where_the_server_wants_it(server: SecureServer, mode: str) -> None:
    assert encryption(connect(server, "scrammed", sslmode=mode)) == "TLSv1.3"


def test_disable_does_not_encrypt(server: SecureServer) -> None:
    assert encryption(connect(server, "plain", sslmode="disable")) is None
    with pytest.raises(SourceRefused) as caught:
        connect(server, "scrammed", sslmode="disable")
    assert "pg_hba.conf" in caught.value.remedy


@pytest.mark.parametrize("mode", ["allow", "prefer"])
def test_modes_that_do_not_insist_go_without_where_the_server_wants_that(server: SecureServer, mode: str) -> None:
    assert encryption(connect(server, "plain", sslmode=mode)) is None


def test_require_does_not_go_without(server: SecureServer) -> None:
    with pytest.raises(SourceRefused):
        connect(server, "plain", sslmode="require")


def test_require_insists_on_a_server_with_tls(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(SourceRefused, match="TLS"):
        ReplicationConnection.connect(postgres.dsn(sslmode="require"))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_verified_modes_accept_the_right_server(server: SecureServer, authority: Authority, mode: str, host: str) -> None:
    assert encryption(connect(server, "scrammed", host, sslmode=mode, sslrootcert=authority.certificate))


def test_verify_full_accepts_a_wildcard(server: SecureServer, authority: Authority) -> None:
    options: Options = {"sslmode": "verify-full", "sslrootcert": authority.certificate, "hostaddr": "127.0.0.1"}
    assert encryption(connect(server, "scrammed", "first.db.test", **options))


@pytest.mark.parametrize("host", ["wrong.test", "deep.first.db.test", "127.0.0.2", "::1"])
def test_verify_full_refuses_another_name_and_verify_ca_does_not_look(
    server: SecureServer, authority: Authority, host: str
) -> None:
    options: Options = {"sslrootcert": authority.certificate, "hostaddr": "127.0.0.1"}
    with pytest.raises(SourceRefused, match="certificate"):
        connect(server, "scrammed", host, sslmode="verify-full", **options)
    assert encryption(connect(server, "scrammed", host, sslmode="verify-ca", **options))


def test_verify_full_needs_a_name_to_check(server: SecureServer, authority: Authority) -> None:
    with pytest.raises(SourceRefused, match="host name"):
        connect(server, "scrammed", "", hostaddr="127.0.0.1", sslmode="verify-full", sslrootcert=authority.certificate)


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_a_stranger_is_refused_wherever_a_root_certificate_is_known(
    server: SecureServer, tmp_path: Path, home: Path, mode: str
) -> None:
    stranger = Authority(tmp_path / "stranger").certificate
    with pytest.raises(SourceRefused, match="certificate"):
        connect(server, "scrammed", "localhost", sslmode=mode, sslrootcert=stranger)
    shutil.copy(stranger, home / "root.crt")
    with pytest.raises(SourceRefused, match="certificate"):
        connect(server, "scrammed", "localhost", sslmode=mode)


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_verified_modes_need_a_root_certificate(server: SecureServer, mode: str) -> None:
    with pytest.raises(SourceRefused, match=r"root\.crt"):
        connect(server, "scrammed", sslmode=mode)


def test_system_roots_are_checked_in_full(server: SecureServer, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceRefused, match="certificate"):
        connect(server, "scrammed", "localhost", sslrootcert="system")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    assert encryption(connect(server, "scrammed", "localhost", sslrootcert="system"))
    with pytest.raises(SourceRefused, match="certificate"):
        connect(server, "scrammed", "wrong.test", hostaddr="127.0.0.1", sslrootcert="system")
    with pytest.raises(SourceRefused, match="verify-full"):
        connect(server, "scrammed", "localhost", sslrootcert="system", sslmode="require")


def test_a_revoked_certificate_is_refused(
    server: SecureServer, authority: Authority, served: tuple[Path, Path], home: Path
) -> None:
    options: Options = {"sslmode": "verify-ca", "sslrootcert": authority.certificate}
    clean = authority.revoke()
    assert encryption(connect(server, "scrammed", sslcrl=clean, **options))
    revoked = authority.revoke(served[0])
    with pytest.raises(SourceRefused, match="revoked"):
        connect(server, "scrammed", sslcrl=revoked, **options)
    shutil.copy(revoked, home / "root.crl")
    with pytest.raises(SourceRefused, match="revoked"):
        connect(server, "scrammed", **options)
    with pytest.raises(SourceRefused, match="sslcrl"):
        connect(server, "scrammed", sslcrl=home / "missing.crl", **options)


def test_protocol_versions_are_kept_to(server: SecureServer) -> None:
    assert encryption(connect(server, "scrammed", sslmode="require", ssl_max_protocol_version="TLSv1.2")) == "TLSv1.2"
    assert encryption(connect(server, "scrammed", sslmode="require", ssl_min_protocol_version="TLSv1.3")) == "TLSv1.3"
    with pytest.raises(SourceRefused, match="ssl_min_protocol_version"):
        connect(server, "scrammed", sslmode="require", ssl_min_protocol_version="SSLv3")
    with pytest.raises(SourceRefused, match="ssl_min_protocol_version"):
        connect(server, "scrammed", sslmode="require", ssl_min_protocol_version="TLSv1.3", ssl_max_protocol_version="TLSv1.2")


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_channel_binding_binds_the_password_to_the_certificate(server: SecureServer, version: str) -> None:
    options: Options = {"sslmode": "require", "channel_binding": "require", "ssl_max_protocol_version": version}
    assert encryption(connect(server, "scrammed", require_auth="scram-sha-256", **options)) == version
    with pytest.raises(SourceRefused, match="channel binding"):
        connect(server, "trusting", **options)


def test_channel_binding_can_be_left_out(server: SecureServer) -> None:
    assert encryption(connect(server, "scrammed", sslmode="require", channel_binding="disable"))


def test_channel_binding_notices_a_middleman(server: SecureServer, authority: Authority) -> None:
    middleman = authority.issue("middleman", "DNS:localhost")
    with relay(server.port, *middleman, downstream_tls=True) as port, pytest.raises(SourceRefused):
        connect(server, "scrammed", port=str(port), sslmode="require")


def test_a_client_certificate_logs_in(server: SecureServer, authority: Authority, home: Path) -> None:
    certificate, key = authority.issue("certified")
    options: Options = {"sslmode": "require", "sslcert": certificate, "sslkey": key}
    assert encryption(connect(server, "certified", **options))
    with pytest.raises(SourceRefused):
        connect(server, "certified", sslcertmode="disable", **options)
    with pytest.raises(SourceRefused):
        connect(server, "certified", sslmode="require")
    shutil.copy(certificate, home / "postgresql.crt")
    shutil.copy(key, home / "postgresql.key")
    assert encryption(connect(server, "certified", sslmode="require"))


def test_a_client_certificate_of_another_is_refused(server: SecureServer, authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("somebody")
    with pytest.raises(SourceRefused):
        connect(server, "certified", sslmode="require", sslcert=certificate, sslkey=key)
    certificate, key = Authority(tmp_path / "stranger").issue("certified")
    with pytest.raises(SourceRefused):
        connect(server, "certified", sslmode="require", sslcert=certificate, sslkey=key)


def test_a_locked_key_needs_its_password_and_never_asks(server: SecureServer, authority: Authority) -> None:
    certificate, key = authority.issue("certified", password="open")
    options: Options = {"sslmode": "require", "sslcert": certificate, "sslkey": key}
    assert encryption(connect(server, "certified", sslpassword="open", **options))
    for wrong in ("", "shut"):
        with pytest.raises(SourceRefused, match="client certificate") as caught:
            connect(server, "certified", sslpassword=wrong, **options)
        assert "shut" not in caught.value.message


def test_a_key_that_others_can_read_is_refused(server: SecureServer, authority: Authority) -> None:
    certificate, key = authority.issue("certified")
    key.chmod(0o604)
    with pytest.raises(SourceRefused, match="group or world"):
        connect(server, "certified", sslmode="require", sslcert=certificate, sslkey=key)
    key.unlink()
    with pytest.raises(SourceRefused, match="cannot be read"):
        connect(server, "certified", sslmode="require", sslcert=certificate, sslkey=key)


def test_options_that_python_cannot_honour_are_refused_by_name(server: SecureServer, authority: Authority) -> None:
    with pytest.raises(SourceRefused, match="sslcertmode"):
        connect(server, "scrammed", sslmode="require", sslcertmode="require")
    with pytest.raises(SourceRefused, match="sslsni"):
        connect(server, "scrammed", sslmode="verify-full", sslrootcert=authority.certificate, sslsni="0")
    assert encryption(connect(server, "scrammed", sslmode="require", sslsni="0"))


def test_the_stream_comes_through_tls(server: SecureServer) -> None:
    connection = stream(server)
    with psycopg.connect(server.control(), autocommit=True) as control:
        control.execute("INSERT INTO t SELECT g, repeat('y', 1000) FROM generate_series(-3002, -3) g")
    assert sum(map(is_row, read_frames(connection, is_row, 3000))) == 3000
    connection.end()


@pytest.mark.parametrize("size", [1, 100])
def test_what_tls_has_already_read_is_not_waited_for(server: SecureServer, size: int) -> None:
    connection = stream(server)
    with psycopg.connect(server.control(), autocommit=True) as control:
        control.execute("DELETE FROM t WHERE a = -1; INSERT INTO t VALUES (-1, repeat('z', 3000))")
    assert read_frames(connection, is_row, size=size)
    connection.end()


def test_statuses_and_reading_share_one_tls_session(server: SecureServer) -> None:
    connection = stream(server)
    check_statuses_beside_reading(connection, server.control())
    connection.end()


def test_the_end_of_a_tls_stream_is_seen(server: SecureServer) -> None:
    connection = stream(server)
    with psycopg.connect(server.control(), autocommit=True) as control:
        control.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 's'")
    assert read_frames(connection, lambda frame: frame[0] == b"E")
    with pytest.raises(SourceUnreachable, match="closed"):
        read_frames(connection, is_row)
    connection.end()
    connection.end()


def stream(server: SecureServer) -> ReplicationConnection:
    connection = connect(server, "scrammed", sslmode="require")
    connection.query("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')")
    connection.start_replication("s", 0, {"proto_version": "1", "publication_names": "p"})
    return connection


@contextlib.contextmanager
def relay(
    target: int, certificate: Path, key: Path, *, direct: bool = False, alpn: bool = True, downstream_tls: bool = False
) -> Iterator[int]:
    """A port that ends TLS and passes everything on to `target`, as a proxy does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if alpn:
        context.set_alpn_protocols(["postgresql"])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as plain:
                if not direct:
                    plain.recv(8, socket.MSG_WAITALL)
                    plain.sendall(b"S")
                with context.wrap_socket(plain, server_side=True) as inner, open_target() as outer:
                    pump(inner, outer)

        def open_target() -> socket.socket:
            outer = socket.create_connection(("127.0.0.1", target))
            if not downstream_tls:
                return outer
            outer.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")
            outer.recv(1)
            return ssl._create_unverified_context().wrap_socket(outer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(DEADLINE)
        assert not thread.is_alive()


def pump(inner: ssl.SSLSocket, outer: socket.socket) -> None:
    """Pass bytes both ways, one turn each, until one side ends; enough for a startup's questions and answers."""
    ends: list[socket.socket] = [inner, outer]
    for end in ends:
        end.settimeout(0.02)
    while True:
        for source, drain in (ends, ends[::-1]):
            try:
                data = source.recv(65536)
            except TimeoutError:
                continue
            if not data:
                return
            drain.sendall(data)


def test_direct_negotiation_saves_the_question(
    postgres: EmbeddedPostgres, served: tuple[Path, Path], authority: Authority
) -> None:
    options = f"user=postgres password={postgres.password} dbname=postgres sslnegotiation=direct"
    verified = f"sslmode=verify-full sslrootcert={authority.certificate}"
    with relay(postgres.port, *served, direct=True) as port:
        connection = ReplicationConnection.connect(f"host=localhost hostaddr=127.0.0.1 port={port} {options} {verified}")
        assert connection.query("SELECT 1") == [("1",)]
        connection.end()
    with relay(postgres.port, *served, direct=True, alpn=False) as port, pytest.raises(ProtocolBroken, match="direct"):
        ReplicationConnection.connect(f"host=127.0.0.1 port={port} {options} sslmode=require")
    with pytest.raises(SourceRefused, match="sslnegotiation"):
        ReplicationConnection.connect(f"host=127.0.0.1 port={postgres.port} {options} sslmode=prefer")
