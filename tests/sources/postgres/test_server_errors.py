"""What the server reports becomes the error that tells an operator what to do; provoked on real servers where they allow it."""

from __future__ import annotations

import contextlib
import pickle
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import (
    ProtocolBroken,
    PublicationMissing,
    SlotInUse,
    SlotLost,
    SlotMissing,
    SourceDatabaseMissing,
    SourceError,
    SourceFailed,
    SourceRefused,
    SourceRights,
    SourceSettings,
    SourceUnreachable,
)
from penstock.sources.postgres.conninfo import Where
from penstock.sources.postgres.server_errors import (
    ServerError,
    parse_error,
    raise_server_error,
    translate_psycopg,
    translate_sqlstate,
)
from penstock.sources.postgres.wire import ReplicationConnection

WHERE = Where("db.example", 5432, "cdc", "shop")
PGOUTPUT = {"proto_version": "1", "publication_names": "missing"}


@pytest.fixture(scope="module")
def small() -> Iterator[EmbeddedPostgres]:
    """A server with little of everything."""
    settings = {"fsync": "off", "max_wal_senders": "2", "max_replication_slots": "2", "max_slot_wal_keep_size": "1MB"}
    with EmbeddedPostgres(settings=settings) as server:
        yield server


@contextlib.contextmanager
def session(dsn: str) -> Iterator[ReplicationConnection]:
    connection = ReplicationConnection.connect(dsn)
    try:
        yield connection
    finally:
        connection.end()


@contextlib.contextmanager
def slot(server: EmbeddedPostgres, name: str) -> Iterator[str]:
    server.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    yield name
    server.run(f"SELECT pg_drop_replication_slot('{name}')")


def test_a_slot_that_is_read_by_another_names_the_reader(postgres: EmbeddedPostgres) -> None:
    with slot(postgres, "busy"), session(postgres.dsn()) as first, session(postgres.dsn()) as second:
        first.start_replication("busy", 0, PGOUTPUT)
        with pytest.raises(SlotInUse) as caught:
            second.start_replication("busy", 0, PGOUTPUT)
        [(pid,)] = postgres.run("SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'busy'")
        assert caught.value.facts["pid"] == pid
        assert caught.value.facts["slot"] == "busy"
        with pytest.raises(psycopg.Error) as dropped:
            postgres.run("SELECT pg_drop_replication_slot('busy')")
        assert isinstance(translate_psycopg(dropped.value, postgres.dsn()), SlotInUse)


def test_a_slot_that_is_not_there_is_named(postgres: EmbeddedPostgres) -> None:
    with session(postgres.dsn()) as connection, pytest.raises(SlotMissing, match="no_such_slot"):
        connection.start_replication("no_such_slot", 0, PGOUTPUT)


def test_a_publication_that_is_not_there_is_named(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.Error) as caught:
        postgres.run("ALTER PUBLICATION no_such_publication SET (publish = 'insert')")
    found = translate_psycopg(caught.value, postgres.dsn())
    assert isinstance(found, PublicationMissing)
    assert found.facts["publication"] == "no_such_publication"


def test_another_object_that_is_not_there_is_no_slot_and_no_publication(postgres: EmbeddedPostgres) -> None:
    with session(postgres.dsn()) as connection, pytest.raises(SourceFailed) as caught:
        connection.query("SELECT 'x'::no_such_type")
    assert caught.value.facts["sqlstate"] == "42704"


def test_a_session_goes_on_after_an_error(postgres: EmbeddedPostgres) -> None:
    with session(postgres.dsn()) as connection:
        with pytest.raises(SourceFailed):
            connection.query("SELECT nonsense")
        assert connection.query("SELECT 1") == [("1",)]


def test_a_role_without_replication_is_told_the_statement(postgres: EmbeddedPostgres) -> None:
    postgres.run("""CREATE ROLE "Plain ""Role" LOGIN PASSWORD 'x'""")
    try:
        with pytest.raises(SourceRights) as caught:
            ReplicationConnection.connect(postgres.dsn(user='Plain "Role', password="x"))
        assert caught.value.remedy == 'Run `ALTER ROLE "Plain ""Role" REPLICATION;` as a superuser.'
    finally:
        postgres.run('DROP ROLE "Plain ""Role"')


def test_a_role_that_may_not_connect_is_told_the_statement(postgres: EmbeddedPostgres) -> None:
    postgres.run("CREATE DATABASE closed")
    postgres.run("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
    postgres.run("CREATE ROLE outsider LOGIN REPLICATION PASSWORD 'x'")
    dsn = postgres.dsn("closed", user="outsider", password="x")
    try:
        with pytest.raises(SourceRights) as caught:
            ReplicationConnection.connect(dsn)
        assert caught.value.remedy == 'Run `GRANT CONNECT ON DATABASE "closed" TO "outsider";`.'
        assert control_error(dsn).remedy == caught.value.remedy
    finally:
        postgres.run("DROP DATABASE closed")
        postgres.run("DROP ROLE outsider")


def test_a_log_without_logical_content_names_the_setting() -> None:
    with EmbeddedPostgres(settings={"fsync": "off", "wal_level": "replica"}) as server, session(server.dsn()) as connection:
        with pytest.raises(SourceSettings) as caught:
            connection.query("CREATE_REPLICATION_SLOT s LOGICAL pgoutput")
        assert caught.value.facts["setting"] == "wal_level"
        assert "wal_level = logical" in caught.value.remedy


def test_too_many_slots_name_the_setting(small: EmbeddedPostgres) -> None:
    with slot(small, "a"), slot(small, "b"), session(small.dsn()) as connection:
        with pytest.raises(SourceSettings) as caught:
            connection.query("CREATE_REPLICATION_SLOT c LOGICAL pgoutput (SNAPSHOT 'nothing')")
        assert caught.value.facts["setting"] == "max_replication_slots"


def test_too_many_senders_name_the_setting_and_are_tried_again(small: EmbeddedPostgres) -> None:
    with session(small.dsn()), session(small.dsn()), pytest.raises(SourceFailed) as caught:
        ReplicationConnection.connect(small.dsn())
    assert caught.value.facts["setting"] == "max_wal_senders"
    assert caught.value.retry == "timed"


def test_a_slot_whose_log_is_gone_is_lost(small: EmbeddedPostgres) -> None:
    with slot(small, "forgotten"):
        deadline = time.monotonic() + 60
        while small.run("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'forgotten'") != [("lost",)]:
            assert time.monotonic() < deadline
            small.run("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000)), pg_switch_wal()")
            small.run("CHECKPOINT")
        with session(small.dsn()) as connection, pytest.raises(SlotLost) as caught:
            connection.start_replication("forgotten", 0, PGOUTPUT)
        assert caught.value.facts["slot"] == "forgotten"


def test_a_stopping_server_is_unreachable_for_now(tmp_path: Path) -> None:
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        connection = ReplicationConnection.connect(server.dsn())
        server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'")
        with pytest.raises(SourceUnreachable) as caught:
            connection.query("SELECT 1")
        connection.close()
        assert caught.value.retry == "timed"


def control_error(dsn: str) -> SourceError:
    with pytest.raises(psycopg.Error) as caught:
        psycopg.connect(dsn)
    return translate_psycopg(caught.value, dsn)


def test_control_connections_meet_the_same_errors(postgres: EmbeddedPostgres) -> None:
    refused = control_error(postgres.dsn(password="sesame"))
    assert isinstance(refused, SourceRefused)
    assert "sesame" not in repr(refused.to_data())
    assert f"127.0.0.1:{postgres.port}" in refused.message
    assert isinstance(control_error(postgres.dsn("nowhere")), SourceDatabaseMissing)
    assert isinstance(control_error(postgres.dsn(sslmode="require")), SourceRefused)
    assert isinstance(control_error("host=127.0.0.1 port=1 user=u"), SourceUnreachable)
    assert isinstance(control_error("host=no.such.host.invalid user=u"), SourceUnreachable)
    assert isinstance(control_error("host=/no/such/directory user=u"), SourceUnreachable)
    assert isinstance(control_error("host"), SourceRefused)


def test_control_connections_that_are_cut_are_unreachable(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        postgres.run(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)")
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT 1")
    assert isinstance(translate_psycopg(caught.value, postgres.dsn()), SourceUnreachable)
    with pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT 1")
    assert isinstance(translate_psycopg(caught.value, postgres.dsn()), SourceUnreachable)


def test_control_connections_that_get_no_answer_are_unreachable() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        found = control_error(f"host=127.0.0.1 port={silent.getsockname()[1]} user=u connect_timeout=2")
    assert isinstance(found, SourceUnreachable)
    assert "in time" in found.message


def test_control_refusals_in_another_language_are_refusals(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(postgres.dsn(password="wrong"))
    german = psycopg.OperationalError(
        'connection failed: connection to server at "127.0.0.1", port 1 failed: FATAL:  Kennwort für Benutzer »postgres« falsch',
        pgconn=caught.value.pgconn,
    )
    assert isinstance(translate_psycopg(german, postgres.dsn()), SourceRefused)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServerError("FATAL", "57P03", "das Datenbanksystem startet"), SourceUnreachable),
        (ServerError("FATAL", "57P01", "Verbindung wird abgebrochen"), SourceUnreachable),
        (ServerError("FATAL", "08P01", "unsupported startup parameter: replication"), ProtocolBroken),
        (ServerError("FATAL", "28P01", "Passwort falsch"), SourceRefused),
        (ServerError("FATAL", "3D000", "Datenbank »shop« existiert nicht"), SourceDatabaseMissing),
        (ServerError("ERROR", "55006", "Slot »s 1« wird von PID 77 verwendet", routine="ReplicationSlotAcquire"), SlotInUse),
        (ServerError("ERROR", "55006", "Datenbank »x« wird benutzt", routine="dropdb"), SourceFailed),
        (ServerError("ERROR", "42704", "Slot »s« existiert nicht", routine="ReplicationSlotAcquire"), SlotMissing),
        (ServerError("ERROR", "42704", "Publikation »p« existiert nicht", routine="get_publication_oid"), PublicationMissing),
        (ServerError("ERROR", "55000", "Bedingung", routine="CheckLogicalDecodingRequirements"), SourceSettings),
        (ServerError("ERROR", "55000", 'can no longer get changes from replication slot "s"'), SlotLost),
        (ServerError("ERROR", "55000", "something else"), SourceFailed),
        (ServerError("ERROR", "58P01", "requested WAL segment 000000010000000000000001 has already been removed"), SlotLost),
        (ServerError("ERROR", "XX000", "unexpected"), SourceFailed),
    ],
)
def test_each_sqlstate_has_its_error_in_any_language(error: ServerError, kind: type[SourceError]) -> None:
    found = translate_sqlstate(error, WHERE)
    assert type(found) is kind
    assert found.facts["sqlstate"] == error.sqlstate
    assert found.remedy
    assert pickle.loads(pickle.dumps(found)).to_data() == found.to_data()


def test_names_are_taken_out_of_any_language() -> None:
    found = translate_sqlstate(
        ServerError("ERROR", "55006", "Slot »s 1« wird von PID 77 verwendet", routine="ReplicationSlotAcquire"), WHERE
    )
    assert (found.facts["slot"], found.facts["pid"]) == ("s 1", 77)


def test_row_values_in_data_errors_are_not_repeated(postgres: EmbeddedPostgres) -> None:
    with session(postgres.dsn()) as connection, pytest.raises(SourceFailed) as caught:
        connection.query("SELECT 'sesame'::int")
    assert "sesame" not in repr(caught.value.to_data())
    assert caught.value.facts["sqlstate"] == "22P02"


def test_an_error_response_is_read_field_by_field() -> None:
    payload = b"SFEHLER\0VERROR\0C42704\0Mm\0Dd\0Hh\0Fslot.c\0L1\0RReplicationSlotAcquire\0\0"
    assert parse_error(payload) == ServerError("ERROR", "42704", "m", "d", "h", "ReplicationSlotAcquire")
    with pytest.raises(SlotMissing):
        raise_server_error(payload, WHERE)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_response_of_some_kind(payload: bytes) -> None:
    with pytest.raises(SourceError) as caught:
        raise_server_error(payload)
    assert caught.value.message
