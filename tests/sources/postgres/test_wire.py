"""The replication connection: commands, the raw stream, statuses from another thread, and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import SourceError, SourceFailed, SourceUnreachable
from penstock.sources.postgres.wire import ReplicationConnection, raise_server_error
from tests.conftest import Database
from tests.raw_stream import DEADLINE, check_statuses_beside_reading, is_commit, is_keepalive, is_row, read_frames

PGOUTPUT = {"proto_version": "1", "publication_names": "p"}


@pytest.fixture
def connection(database: Database) -> Iterator[ReplicationConnection]:
    database.execute("CREATE TABLE t (a bigint PRIMARY KEY, b text); CREATE PUBLICATION p FOR TABLE t")
    connection = ReplicationConnection.connect(database.dsn)
    yield connection
    connection.close()


def start(connection: ReplicationConnection, name: str = "s") -> None:
    connection.query(f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')")
    connection.start_replication(name, 0, PGOUTPUT)


def test_commands_and_queries_give_text_and_null(connection: ReplicationConnection, database: Database) -> None:
    [(system, timeline, position, name)] = connection.query("IDENTIFY_SYSTEM")
    assert system and timeline == "1" and position and name == database.name
    assert connection.query("SELECT 'ä', NULL, '', 1 UNION ALL SELECT 'b', 'c', 'd', 2 ORDER BY 4") == [
        ("ä", None, "", "1"),
        ("b", "c", "d", "2"),
    ]
    assert connection.query("CREATE TABLE public.made ()") == []
    assert connection.query("SELECT repeat('x', 3000000)") == [("x" * 3_000_000,)]
    assert connection.query("") == []


def test_the_server_says_what_it_is(connection: ReplicationConnection) -> None:
    assert connection.parameters["server_version"].split(".")[0].isdigit()
    assert connection.parameters["client_encoding"] == "UTF8"
    connection.query("SET application_name = 'changed'")
    assert connection.parameters["application_name"] == "changed"


def test_the_stream_comes_as_raw_frames(connection: ReplicationConnection, database: Database) -> None:
    start(connection)
    database.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 500) g")
    messages = read_frames(connection, is_row, 500)
    kinds = [body[25:26] for kind, body in messages if kind == b"d" and body[:1] == b"w"]
    assert kinds[:2] == [b"B", b"R"]
    assert {kind for kind, _ in messages} == {b"d"}


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_smallest_views_lose_nothing(connection: ReplicationConnection, database: Database, size: int) -> None:
    start(connection)
    database.execute("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    assert sum(map(is_row, read_frames(connection, is_row, 2, size))) == 2


def test_an_empty_view_is_no_end_of_file(connection: ReplicationConnection) -> None:
    start(connection)
    assert connection.receive_into(memoryview(bytearray())) == 0


def test_reading_does_not_block(connection: ReplicationConnection) -> None:
    start(connection)
    view = memoryview(bytearray(1 << 16))
    deadline = time.monotonic() + DEADLINE
    while connection.wait(0.2):
        assert time.monotonic() < deadline
        connection.receive_into(view)
    assert connection.receive_into(view) == 0
    assert connection.fileno() > 0


def test_a_status_is_answered_and_moves_the_slot(connection: ReplicationConnection, database: Database) -> None:
    connection.query("CREATE_REPLICATION_SLOT moving LOGICAL pgoutput (SNAPSHOT 'nothing')")
    connection.start_replication("moving", 0, PGOUTPUT)
    database.execute("INSERT INTO t VALUES (1, 'x')")
    read_frames(connection, is_commit)
    [(end,)] = database.rows("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
    connection.send_status(end, end, end, True)
    read_frames(connection, is_keepalive)
    connection.end()
    assert database.rows(
        "SELECT (confirmed_flush_lsn - '0/0')::bigint, active FROM pg_replication_slots WHERE slot_name = 'moving'"
    ) == [(end, False)]


def test_the_stream_begins_where_it_is_told(connection: ReplicationConnection, database: Database) -> None:
    connection.query("CREATE_REPLICATION_SLOT later LOGICAL pgoutput (SNAPSHOT 'nothing')")
    database.execute("INSERT INTO t VALUES (1, 'early')")
    [(position,)] = database.rows("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
    database.execute("INSERT INTO t VALUES (2, 'late')")
    connection.start_replication("later", position, PGOUTPUT)
    [row] = filter(is_row, read_frames(connection, is_row))
    assert b"late" in row[1]


def test_names_and_options_cannot_break_out_of_their_quotes(connection: ReplicationConnection, database: Database) -> None:
    publication = """odd ' " \\ name"""
    database.execute("""CREATE PUBLICATION "odd ' "" \\ name" FOR TABLE t""")
    connection.query("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')")
    quoted = publication.replace('"', '""')
    connection.start_replication("s", 0, {"proto_version": "1", "publication_names": f'"{quoted}"'})
    database.execute("INSERT INTO t VALUES (1, 'x')")
    read_frames(connection, is_row)


@pytest.mark.parametrize("slot", ['s" LOGICAL 0/0; DROP TABLE t; --', "s'", 's"'])
def test_a_strange_slot_name_is_only_a_name(connection: ReplicationConnection, slot: str) -> None:
    with pytest.raises(SourceError):
        connection.start_replication(slot, 0, PGOUTPUT)
    assert connection.query("SELECT count(*) FROM public.t") == [("0",)]


def test_a_nul_in_a_name_is_refused(connection: ReplicationConnection) -> None:
    with pytest.raises(SourceError):
        connection.start_replication("a\0b", 0, PGOUTPUT)


def test_an_option_the_plugin_does_not_know_is_reported(connection: ReplicationConnection) -> None:
    connection.query("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')")
    with pytest.raises(SourceFailed, match="no_such_option"):
        connection.start_replication("s", 0, {**PGOUTPUT, "no_such_option": "1"})


def test_statuses_from_another_thread_do_not_disturb_the_reader(connection: ReplicationConnection, database: Database) -> None:
    start(connection)
    check_statuses_beside_reading(connection, database.dsn)


def test_the_end_lets_go_of_the_slot_at_once_even_within_a_big_transaction(database: Database) -> None:
    database.execute("CREATE TABLE t (a bigint PRIMARY KEY, b text); CREATE PUBLICATION p FOR TABLE t")
    first = ReplicationConnection.connect(database.dsn)
    first.query("CREATE_REPLICATION_SLOT big LOGICAL pgoutput (SNAPSHOT 'nothing')")
    database.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 50000) g")
    first.start_replication("big", 0, PGOUTPUT)
    read_frames(first, is_row, 10, size=4096)
    begun = time.monotonic()
    first.end()
    assert time.monotonic() - begun < 1.5
    second = ReplicationConnection.connect(database.dsn)
    second.start_replication("big", 0, PGOUTPUT)
    read_frames(second, is_row)
    second.end()


def test_the_end_never_fails(database: Database) -> None:
    connection = ReplicationConnection.connect(database.dsn)
    connection.end()
    connection.end()
    connection.close()
    with pytest.raises(SourceUnreachable):
        connection.send_status(0, 0, 0, False)
    with pytest.raises(SourceUnreachable):
        connection.query("SELECT 1")


def test_a_walsender_that_is_ended_is_reported_by_its_error_and_then_as_gone(
    connection: ReplicationConnection, database: Database
) -> None:
    start(connection)
    database.rows("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 's'")
    [(_, body)] = [frame for frame in read_frames(connection, lambda frame: frame[0] == b"E") if frame[0] == b"E"]
    with pytest.raises(SourceUnreachable) as caught:
        raise_server_error(body, connection.where)
    assert caught.value.facts["sqlstate"] == "57P01"
    with pytest.raises(SourceUnreachable):
        read_frames(connection, is_row)


def test_a_server_that_dies_is_gone(tmp_path: Path) -> None:
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        connection = ReplicationConnection.connect(server.dsn())
        connection.query("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')")
        connection.start_replication("s", 0, PGOUTPUT)
        server.kill()
        with pytest.raises(SourceUnreachable):
            read_frames(connection, is_row)
        connection.end()


def test_closing_from_another_thread_ends_a_query(connection: ReplicationConnection, database: Database) -> None:
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            connection.query("SELECT pg_advisory_lock(7)")
        except SourceError as error:
            failures.append(error)

    with database.connect() as control:
        control.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=ask)
        thread.start()
        deadline = time.monotonic() + DEADLINE
        while not control.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall():
            assert time.monotonic() < deadline
        connection.close()
        thread.join(DEADLINE)
    assert [type(failure) for failure in failures] == [SourceUnreachable]
