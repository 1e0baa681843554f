"""What may be confirmed when: progress on idle tables, open transactions, keepalives between and inside of transactions."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.embedded.installation import DEFAULT_BUILD, Build
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.journal.writer import JournalWriter
from penstock.sources.postgres.assembly import Assembly
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.relation import RelationBook
from penstock.sources.postgres.typebook import TypeBook
from penstock.sources.postgres.wire import ReplicationConnection
from tests.conftest import OLDER, Database
from tests.processes import wait_until
from tests.raw_stream import DEADLINE, Frame, is_commit, is_keepalive, read_frames
from tests.sources.postgres.captured import Captured

NOTICE = b"N" + struct.pack(">I", 14) + b"SNOTICE\0\0\0"
PARAMETER = b"S" + struct.pack(">I", 8) + b"a\0b\0"


@pytest.fixture
def database(each_database: Database) -> Database:
    return each_database


class Hand:
    """A capture that goes on only when it is told to, so that a test decides what has been received."""

    def __init__(self, captured: Captured, database: Database) -> None:
        self.journal = JournalWriter(captured.directory)
        if self.journal.is_new:
            self.journal.begin(captured.prepared.start)
        self._control = Control(database.dsn, "flow")
        types = TypeBook(self._control, True)
        book = RelationBook(self._control, types, self.journal.entries, self.journal.versions, self.journal.catalog)
        self.assembly = Assembly(self.journal, book)
        self._rest = b""
        # The server may not have noticed yet that the one before has hung up.
        wait_until(lambda: not database.rows("select from pg_replication_slots where active and database = %s", database.name))
        self.connection = ReplicationConnection.connect(database.dsn)
        options = {"proto_version": "1", "publication_names": captured.source.publication}
        self.connection.start_replication(captured.source.slot, self.journal.mark, options)

    def received(self, size: int) -> list[Frame]:
        """The frames that one read of at most `size` bytes has made whole."""
        assert self.connection.wait(DEADLINE)
        view = memoryview(bytearray(size))
        self._rest += bytes(view[: self.connection.receive_into(view)])
        found: list[Frame] = []
        while len(self._rest) >= 5 and len(self._rest) > (length := struct.unpack_from(">I", self._rest, 1)[0]):
            found.append((self._rest[:1], self._rest[5 : length + 1]))
            self._rest = self._rest[length + 1 :]
        return found

    def feed(self, data: bytes) -> None:
        """Bytes arrive, and everything that can be made durable is."""
        room = self.assembly.room()
        room[: len(data)] = data
        self.assembly.arrived(len(data))
        self.assembly.take()
        self.assembly.publish(bare=True)

    def drop(self) -> None:
        """Ends as a killed process does: nothing is flushed, said or waited for."""
        self.connection.close()
        self._control.close()
        self.journal.close()


@contextmanager
def by_hand(captured: Captured, database: Database) -> Iterator[Hand]:
    hand = Hand(captured, database)
    try:
        yield hand
    finally:
        hand.drop()
        captured.source.close()


def wire(frame: Frame) -> bytes:
    kind, body = frame
    return kind + struct.pack(">I", len(body) + 4) + body


def keepalive(position: int) -> bytes:
    return wire((b"d", b"k" + struct.pack(">QQ", position, 0) + b"\0"))


def ids(captured: Captured) -> list[int]:
    return [e["row"]["id"] for e in captured.events("t")]


def test_the_log_of_unpublished_tables_is_passed_by_the_journal_and_confirmed(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); create table other (v text)")
    captured = Captured(database, tmp_path, publication_tables=["public.t"])
    with captured.running():
        begin = captured.source.confirmed()
        database.execute("insert into other select repeat('x', 1000) from generate_series(1, 25000)")
        head = captured.source.head()
        assert head - begin > 25_000_000
        captured.drain()
        assert captured.slices() == [] and captured.mark >= head
        captured.link.confirm(captured.mark)
        wait_until(lambda: captured.source.confirmed() >= head)


def test_an_open_transaction_is_not_lost_by_confirming_beyond_its_rows(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path)
    with database.connect() as slow:
        with captured.running():
            slow.execute("begin")
            slow.execute("insert into t values (1)")
            database.execute("insert into t values (2)")
            captured.drain()
            mark = captured.mark
            captured.link.confirm(mark)
            wait_until(lambda: captured.source.confirmed() == mark)
            slow.execute("insert into t values (3)")
        slow.execute("commit")
    with captured.running():
        database.execute("insert into t values (4)")
        captured.drain()
    assert ids(captured) == [2, 1, 3, 4]


def test_a_keepalive_vouches_for_nothing_that_is_half_received(database: Database, tmp_path: Path) -> None:
    """Two interleaved transactions, a keepalive after every message, and an end by violence after every message."""
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path / "journal")
    with by_hand(captured, database) as hand, database.connect() as one, database.connect() as two:
        for sql in ("begin", "insert into t values (1)"):
            one.execute(sql.encode())
        for sql in ("begin", "insert into t values (2)", "insert into t values (3)"):
            two.execute(sql.encode())
        one.execute("insert into t values (4)")
        two.execute("commit")
        one.execute("commit")
        frames = [f for f in read_frames(hand.connection, is_commit, 2) if f[1][:1] == b"w"]
    head = captured.source.head()
    commits = [i for i, f in enumerate(frames) if is_commit(f)]
    ends = [struct.unpack_from(">Q", frames[i][1], 25 + 10)[0] for i in commits]
    assert [chr(f[1][25]) for f in frames] == list("BRIICBIIC")
    for killed_after in range(len(frames)):
        captured.directory = tmp_path / f"killed-{killed_after}"
        with by_hand(captured, database) as hand:
            start = hand.journal.mark
            for i, frame in enumerate(frames[: killed_after + 1]):
                # Outside of a transaction a server sends no keepalive beyond what it has still to send.
                hand.feed(wire(frame) + (b"" if i in commits else keepalive(head)))
                done = [end for c, end in zip(commits, ends, strict=True) if c <= i]
                assert hand.journal.mark == max([start, *done])
        with by_hand(captured, database) as hand:
            # Where the journal ended is what could have been confirmed: everything after it comes again.
            for frame in read_frames(hand.connection, is_commit, 2 - len(done)) if len(done) < 2 else []:
                hand.feed(wire(frame))
        assert ids(captured) == [2, 3, 1, 4], f"killed after message {killed_after}"


def test_keepalives_that_the_server_sends_inside_a_big_transaction_move_nothing(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v text)")
    captured = Captured(database, tmp_path)
    database.execute("insert into t select g, repeat(md5(g::text), 30) from generate_series(1, 20000) g")
    inside, begun, committed = 0, False, False
    with by_hand(captured, database) as hand:
        while not committed:
            # A reader that is slow and asks: the server answers between two rows.
            hand.connection.send_status(0, 0, 0, True)
            for frame in hand.received(1 << 16):
                before = hand.journal.mark
                begun = begun or frame[1][25:26] == b"B"
                committed = committed or is_commit(frame)
                hand.feed(wire(frame))
                if begun and not committed:
                    assert hand.journal.mark == before
                    inside += is_keepalive(frame)
    assert inside > 1
    assert ids(captured) == list(range(1, 20001))
    assert captured.mark >= captured.slices()[-1].last


def test_notices_and_parameters_within_the_stream_are_not_part_of_the_journal(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path)
    with by_hand(captured, database) as hand:
        database.execute("insert into t values (1), (2)")
        database.execute("insert into t values (3)")
        for frame in read_frames(hand.connection, is_commit, 2):
            data = NOTICE + wire(frame) + PARAMETER + NOTICE
            hand.feed(data[:20])
            hand.feed(data[20:])
    assert ids(captured) == [1, 2, 3]


@pytest.mark.parametrize("build", [OLDER, DEFAULT_BUILD], ids=["pg16", "pg18"])
def test_a_commit_is_in_the_slot_before_other_sessions_see_it(build: Build, tmp_path: Path) -> None:
    """Synchronous replication to nobody holds the moment open; what a snapshot contains is told by transaction id."""
    settings = {"fsync": "off", "synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    with EmbeddedPostgres(settings=settings, build=build) as server:
        database = Database(server, "postgres")
        database.execute("create table t (id int primary key)")
        with Captured(database, tmp_path).running() as captured, database.connect() as waiting:
            waiting.execute("set synchronous_commit = on")
            pid = waiting.info.backend_pid
            thread = threading.Thread(target=_insert, args=(waiting,))
            thread.start()
            wait_until(lambda: ids(captured) == [1])
            (batch,) = captured.batches()
            (xid,) = batch.xid.to_pylist()
            seen = "select (select count(*) from t), pg_visible_in_snapshot(%s::text::xid8, pg_current_snapshot())"
            assert database.rows(seen, xid) == [(0, False)]
            database.execute("select pg_cancel_backend(%s)", pid)
            thread.join(30)
            assert database.rows(seen, xid) == [(1, True)]


def _insert(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute("insert into t values (1)")
