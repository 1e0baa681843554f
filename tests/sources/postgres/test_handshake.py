"""From a dsn to a session: good servers, several servers, and peers that are none."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import ProtocolBroken, SourceDatabaseMissing, SourceError, SourceRefused, SourceUnreachable
from penstock.sources.postgres.handshake import fits
from penstock.sources.postgres.wire import SESSION_OPTIONS, ReplicationConnection

Script = Callable[[socket.socket], None]


@dataclass
class Peer:
    """Something that listens on a port and is not PostgreSQL."""

    port: int
    calls: list[bytes]


@contextlib.contextmanager
def peer(script: Script) -> Iterator[Peer]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        it = Peer(listener.getsockname()[1], [])

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    it.calls.append(connection.recv(4096))
                    script(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield it
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert not thread.is_alive()


def connect(dsn: str) -> ReplicationConnection:
    return ReplicationConnection.connect(dsn)


def hang_up_later(connection: socket.socket) -> None:
    connection.recv(1)


@pytest.mark.parametrize("mode", ["disable", "prefer", "require"])
def test_a_web_server_is_not_taken_for_postgresql(mode: str) -> None:
    with (
        peer(lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n")) as it,
        pytest.raises(ProtocolBroken) as caught,
    ):
        connect(f"host=127.0.0.1 port={it.port} user=u sslmode={mode}")
    assert f"127.0.0.1:{it.port}" in caught.value.message


def test_a_banner_that_begins_like_a_tls_promise_is_not_taken_for_postgresql() -> None:
    with peer(lambda c: c.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 4)) as it, pytest.raises(ProtocolBroken):
        connect(f"host=127.0.0.1 port={it.port} user=u sslmode=require")


@pytest.mark.parametrize("mode", ["disable", "prefer", "require"])
def test_a_silent_port_is_given_up_after_connect_timeout(mode: str) -> None:
    begun = time.monotonic()
    with peer(hang_up_later) as it, pytest.raises(SourceUnreachable, match="in time"):
        connect(f"host=127.0.0.1 port={it.port} user=u sslmode={mode} connect_timeout=1")
    assert 0.9 < time.monotonic() - begun < 8


def test_a_peer_that_stops_within_the_tls_handshake_is_given_up_after_connect_timeout() -> None:
    def promise_only(connection: socket.socket) -> None:
        connection.sendall(b"S")
        while connection.recv(4096):
            pass

    with peer(promise_only) as it, pytest.raises(SourceUnreachable, match="in time"):
        connect(f"host=127.0.0.1 port={it.port} user=u sslmode=require connect_timeout=1")


def test_a_slow_drip_does_not_stretch_the_timeout() -> None:
    def drip(connection: socket.socket) -> None:
        notice = b"N" + struct.pack("!i", 4)
        while not select.select([connection], [], [], 0.05)[0]:
            connection.sendall(notice)

    begun = time.monotonic()
    with peer(drip) as it, pytest.raises(SourceUnreachable, match="in time"):
        connect(f"host=127.0.0.1 port={it.port} user=u sslmode=disable connect_timeout=1")
    assert time.monotonic() - begun < 8


def test_a_flood_of_messages_is_not_read_for_ever() -> None:
    def flood(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"N\0\0\0\4" * 10_000)

    with peer(flood) as it, pytest.raises(ProtocolBroken):
        connect(f"host=127.0.0.1 port={it.port} user=u sslmode=disable connect_timeout=0")


@pytest.mark.parametrize("answer", [b"", b"R", b"R\0\0\0\x08\0\0", b"R\0\0\0\x08\0\0\0\0", b"E\0\0\1\0S"])
def test_an_end_within_a_message_means_unreachable(answer: bytes) -> None:
    with peer(lambda c: c.sendall(answer)) as it, pytest.raises(SourceUnreachable, match="closed"):
        connect(f"host=127.0.0.1 port={it.port} user=u sslmode=disable")


@pytest.mark.parametrize(
    "answer",
    [
        b"R\x7f\xff\xff\xff",  # a length that would allocate two gigabytes
        b"R\0\0\0\3",
        b"R\xff\xff\xff\xff",
        b"R\0\0\0\4",
        b"Z\0\0\0\5I",  # ready before any authentication
        b"S\0\0\0\7a\0b",
        b"R\0\0\0\x0c\0\0\0\x0bv=xx",  # the end of a SCRAM exchange that never began
        b"R\0\0\0\x08\0\0\0\5",  # md5 without a salt
        b"D\0\0\0\6\0\0",
    ],
)
def test_garbage_in_the_startup_is_called_so(answer: bytes) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(answer)
        hang_up_later(connection)

    with peer(script) as it, pytest.raises(ProtocolBroken):
        connect(f"host=127.0.0.1 port={it.port} user=u password=p sslmode=disable connect_timeout=5")


@pytest.mark.parametrize(("code", "name"), [(7, "gss"), (9, "sspi"), (2, "method 2"), (99, "method 99")])
def test_methods_that_are_not_supported_are_refused_by_name(code: int, name: str) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(b"R" + struct.pack("!ii", 8, code))
        hang_up_later(connection)

    with peer(script) as it, pytest.raises(SourceRefused, match=name) as caught:
        connect(f"host=127.0.0.1 port={it.port} user=u password=p sslmode=disable")
    assert "scram-sha-256" in caught.value.remedy


def test_a_server_that_skips_its_own_proof_is_not_trusted() -> None:
    def script(connection: socket.socket) -> None:
        body = struct.pack("!i", 10) + b"SCRAM-SHA-256\0\0"
        connection.sendall(b"R" + struct.pack("!i", len(body) + 4) + body)
        connection.recv(4096)
        connection.sendall(b"R" + struct.pack("!ii", 8, 0) + b"Z\0\0\0\5I")
        hang_up_later(connection)

    with peer(script) as it, pytest.raises(ProtocolBroken, match="SCRAM"):
        connect(f"host=127.0.0.1 port={it.port} user=u password=p sslmode=disable")


def test_a_server_that_changes_the_nonce_is_not_trusted() -> None:
    def script(connection: socket.socket) -> None:
        for code, body in ((10, b"SCRAM-SHA-256\0\0"), (11, b"r=stolen,s=QSXCR+Q6sek8bf92,i=4096")):
            connection.sendall(b"R" + struct.pack("!ii", len(body) + 8, code) + body)
            connection.recv(4096)
        hang_up_later(connection)

    with peer(script) as it, pytest.raises(SourceRefused, match="SCRAM"):
        connect(f"host=127.0.0.1 port={it.port} user=u password=p sslmode=disable")


def test_an_error_before_tls_is_not_quoted() -> None:
    with peer(lambda c: c.sendall(b"ESFATAL\0Mcall this number\0\0")) as it, pytest.raises(SourceUnreachable) as caught:
        connect(f"host=127.0.0.1 port={it.port} user=u sslmode=require")
    assert "number" not in caught.value.message


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                lambda kind, body: kind + struct.pack("!i", len(body) + 4) + body,
                st.sampled_from([b"R", b"S", b"K", b"N", b"E", b"Z", b"T", b"D", b"W", b"v"]),
                st.one_of(
                    st.binary(max_size=30),
                    st.sampled_from(
                        [b"\0\0\0\0", b"\0\0\0\5salt", b"\0\0\0\3", b"\0\0\0\x0aSCRAM-SHA-256\0\0", b"\0\0\0\x0bv=x"]
                    ),
                ),
            ),
        ),
        max_size=8,
    )
)
def test_whatever_a_peer_sends_ends_in_a_session_or_an_error_of_ours(answers: list[bytes]) -> None:
    def script(connection: socket.socket) -> None:
        connection.sendall(b"".join(answers))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass

    with peer(script) as it:
        try:
            connection = connect(f"host=127.0.0.1 port={it.port} user=u password=p sslmode=disable connect_timeout=10")
            connection.close()
        except SourceError:
            return


def test_several_hosts_are_tried_in_order_until_one_answers(postgres: EmbeddedPostgres) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dsn = f"host=no.such.host.invalid,127.0.0.1,127.0.0.1 port=5432,{closed.getsockname()[1]},{postgres.port}"
        connection = connect(f"{dsn} user=postgres password={postgres.password} dbname=postgres")
    assert connection.where.port == postgres.port
    connection.end()


def test_when_no_host_answers_all_reasons_are_given() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(SourceUnreachable) as caught:
            connect(f"host=no.such.host.invalid,127.0.0.1 port=5432,{port} user=u")
    assert "no.such.host.invalid" in caught.value.message
    assert f"127.0.0.1:{port}" in caught.value.message


def test_a_refusal_is_final_for_all_hosts(postgres: EmbeddedPostgres) -> None:
    with peer(hang_up_later) as it, pytest.raises(SourceRefused):
        connect(f"host=127.0.0.1,127.0.0.1 port={postgres.port},{it.port} user=postgres password=wrong dbname=postgres")
    assert it.calls == []


def test_a_starting_server_is_passed_over_for_the_next_host(postgres: EmbeddedPostgres) -> None:
    body = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
    with peer(lambda c: c.sendall(b"E" + struct.pack("!i", len(body) + 4) + body)) as it:
        connection = connect(
            f"host=127.0.0.1,127.0.0.1 port={it.port},{postgres.port} user=postgres password={postgres.password} dbname=postgres "
            "sslmode=disable"
        )
        assert connection.where.port == postgres.port
        connection.end()


def test_a_missing_database_is_named(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(SourceDatabaseMissing, match="nowhere"):
        connect(postgres.dsn("nowhere"))


def test_a_unix_socket_is_found_by_its_directory(postgres: EmbeddedPostgres) -> None:
    connection = connect(f"host={postgres.socket_directory} port={postgres.port} user=postgres dbname=postgres sslmode=require")
    assert connection.query("SELECT inet_client_addr()") == [(None,)]
    connection.end()


def test_requirepeer_checks_who_runs_the_server(postgres: EmbeddedPostgres) -> None:
    dsn = f"host={postgres.socket_directory} port={postgres.port} user=postgres dbname=postgres"
    with pytest.raises(SourceRefused, match="requirepeer"):
        connect(f"{dsn} requirepeer=somebody-else")


def test_an_abstract_socket_is_found_by_its_name() -> None:
    name = f"penstock-test-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}/.s.PGSQL.5432")
        listener.listen()
        listener.settimeout(10)
        with pytest.raises(SourceUnreachable, match="in time"):
            connect(f"host=@{name} user=u connect_timeout=1")
        listener.accept()[0].close()


def test_load_balancing_uses_every_host(postgres: EmbeddedPostgres) -> None:
    dsn = f"host=127.0.0.1,localhost port={postgres.port} user=postgres password={postgres.password} dbname=postgres"
    seen: set[str] = set()
    deadline = time.monotonic() + 30
    while len(seen) < 2 and time.monotonic() < deadline:
        connection = connect(f"{dsn} load_balance_hosts=random")
        seen.add(connection.where.host)
        connection.end()
    assert seen == {"127.0.0.1", "localhost"}


@pytest.mark.parametrize(
    "option",
    ["gssencmode=require", "target_session_attrs=leader", "sslmode=always", "channel_binding=yes", "load_balance_hosts=2"],
)
def test_options_that_cannot_be_honoured_are_refused_by_name(postgres: EmbeddedPostgres, option: str) -> None:
    name = option.split("=", maxsplit=1)[0]
    with pytest.raises(SourceRefused, match=name):
        connect(f"host=127.0.0.1 port={postgres.port} user=postgres password={postgres.password} dbname=postgres {option}")


@pytest.mark.parametrize(
    ("standby", "read_only", "kinds"),
    [
        ("off", "off", {"any", "read-write", "primary"}),
        ("off", "on", {"any", "read-only", "primary"}),
        ("on", "off", {"any", "read-only", "standby"}),
        ("on", "on", {"any", "read-only", "standby"}),
    ],
)
def test_a_server_fits_the_session_kinds_it_reports(standby: str, read_only: str, kinds: set[str]) -> None:
    reported = {"in_hot_standby": standby, "default_transaction_read_only": read_only}
    assert {kind for kind in ("any", "read-write", "read-only", "primary", "standby") if fits(reported, kind)} == kinds


def test_target_session_attrs_passes_over_hosts_that_do_not_fit(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(SourceUnreachable, match="standby"):
        connect(postgres.dsn(target_session_attrs="standby"))
    for kind in ("primary", "read-write", "prefer-standby"):
        connect(postgres.dsn(target_session_attrs=kind)).end()


PINNED = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "",
    "client_encoding": "UTF8",
}
HOSTILE = {
    "timezone": "'Pacific/Kiritimati'",
    "datestyle": "'German'",
    "intervalstyle": "'sql_standard'",
    "extra_float_digits": "-15",
    "bytea_output": "'escape'",
    "search_path": "'evil'",
    "client_encoding": "'LATIN1'",
}


def pinned(connection: ReplicationConnection) -> dict[str, str | None]:
    found = {name: connection.query(f"SHOW {name}")[0][0] for name in PINNED}
    # The order of day and month is no part of ISO output; it stays what the server has.
    found["DateStyle"] = (found["DateStyle"] or "").replace("DMY", "MDY")
    return found


@pytest.fixture
def hostile(postgres: EmbeddedPostgres) -> Iterator[str]:
    postgres.run("CREATE ROLE hostile LOGIN SUPERUSER REPLICATION PASSWORD 'x'")
    postgres.run("CREATE DATABASE hostile")
    for name, value in HOSTILE.items():
        postgres.run(f"ALTER ROLE hostile SET {name} = {value}")
        postgres.run(f"ALTER DATABASE hostile SET {name} = {value}")
        postgres.run(f"ALTER ROLE hostile IN DATABASE hostile SET {name} = {value}")
    yield postgres.dsn("hostile", user="hostile", password="x")
    postgres.run("DROP DATABASE hostile WITH (FORCE)")
    postgres.run("DROP ROLE hostile")


def test_settings_of_role_and_database_do_not_reach_the_session(hostile: str) -> None:
    connection = connect(hostile)
    assert pinned(connection) == PINNED
    connection.end()


@pytest.mark.parametrize(
    "own", ["-c timezone=Asia/Tokyo -c datestyle=German -c work_mem=5MB", "-cwork_mem=5MB --datestyle=SQL\\", "-c work_mem=5MB "]
)
def test_options_of_the_dsn_are_kept_and_cannot_undo_ours(hostile: str, own: str) -> None:
    connection = ReplicationConnection.connect(f"{hostile}?options={own.replace(' ', '%20').replace('=', '%3D')}")
    assert pinned(connection) == PINNED
    assert connection.query("SHOW work_mem") == [("5MB",)]
    connection.end()


@pytest.mark.parametrize(
    "setting",
    ["lock_timeout", "statement_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"],
)
def test_timeouts_of_the_role_do_not_end_the_session(hostile: str, postgres: EmbeddedPostgres, setting: str) -> None:
    postgres.run(f"ALTER ROLE hostile SET {setting} = '1s'")
    with connect(hostile) as connection:
        assert connection.query(f"SHOW {setting}") == [("0",)]


def test_options_of_the_environment_are_kept_and_cannot_undo_ours(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=5MB -c extra_float_digits=-3")
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGDATESTYLE", "German")
    connection = connect(hostile)
    assert pinned(connection) == PINNED
    assert connection.query("SHOW work_mem") == [("5MB",)]
    connection.end()


def test_the_session_says_whose_it_is(postgres: EmbeddedPostgres) -> None:
    connection = ReplicationConnection.connect(postgres.dsn(), application_name="flow shop", startup_options=SESSION_OPTIONS)
    assert connection.query("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()") == [("flow shop",)]
    connection.end()
    connection = ReplicationConnection.connect(postgres.dsn(application_name="mine"), application_name="flow shop")
    assert connection.parameters["application_name"] == "mine"
    connection.end()


def test_keepalive_options_reach_the_socket(postgres: EmbeddedPostgres) -> None:
    connection = connect(postgres.dsn(keepalives_idle=33, keepalives_interval=7, keepalives_count=4, tcp_user_timeout=9000))
    with socket.socket(fileno=socket.dup(connection.fileno())) as sock:
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [33, 7, 4, 9000]
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.end()
