"""Big transactions that arrive before they commit: nothing of them is seen early, nothing rolled back is ever seen."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import SourceSettings
from penstock.journal import retention
from penstock.journal.catalog import Catalog
from penstock.journal.reader import JournalTail, SliceReader
from penstock.journal.record import Slice, SliceFlag
from penstock.journal.segment import catalog_path
from penstock.journal.writer import JournalWriter
from penstock.sources.postgres import assembly
from penstock.sources.postgres import walk as w
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.decoder import PostgresDecoder
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.relation import RelationBook
from penstock.sources.postgres.source import PostgresSource
from penstock.sources.postgres.typebook import TypeBook
from tests.conftest import Database
from tests.sources.postgres.captured import Captured


@pytest.fixture
def database_that_streams(database: Database) -> Database:
    """The walsender streams every transaction from its first change on."""
    database.execute("create table a (id int primary key, v text); create table b (id int primary key, v text)")
    database.execute(f"alter database {database.name} set debug_logical_replication_streaming = immediate")
    return database


def pairs(captured: Captured, table: str) -> list[tuple[str, int, str | None]]:
    return [(e["op"], e["row"]["id"], e["row"]["v"]) for e in captured.events(table)]


def streamed(captured: Captured) -> int:
    return sum(bool(s.flags & SliceFlag.STREAMED) for s in captured.slices())


def test_rolled_back_savepoints_leave_nothing_and_ordinals_count_what_remains(
    database_that_streams: Database, tmp_path: Path
) -> None:
    captured = Captured(database_that_streams, tmp_path)
    with captured.running():
        with database_that_streams.connect() as c:
            c.execute("begin")
            c.execute("insert into a values (1, 'kept')")
            c.execute("savepoint s1")
            c.execute("insert into a values (2, 'gone'), (3, 'gone')")
            c.execute("savepoint s2")
            c.execute("insert into b values (1, 'gone')")
            c.execute("rollback to s1")
            c.execute("savepoint s3")
            c.execute("insert into a values (4, 'kept')")
            c.execute("release s3")
            c.execute("insert into b values (2, 'kept')")
            c.execute("update a set v = 'new' where id = 1")
            c.execute("commit")
        captured.drain()
    assert streamed(captured), "the server did not stream"
    assert pairs(captured, "a") == [("insert", 1, "kept"), ("insert", 4, "kept"), ("update", 1, "new")]
    assert pairs(captured, "b") == [("insert", 2, "kept")]
    events = captured.events("a") + captured.events("b")
    assert sorted(e["id"][1] for e in events) == [1, 2, 3, 4]
    assert len({e["id"][0] for e in events}) == 1
    assert sum(s.changes for s in captured.slices()) == 4


@pytest.mark.parametrize("streaming", [True, False])
def test_identities_are_the_same_whether_it_was_streamed_or_not(
    database_that_streams: Database, tmp_path: Path, streaming: bool
) -> None:
    captured = Captured(database_that_streams, tmp_path, streaming=streaming)
    with captured.running():
        with database_that_streams.connect() as c:
            c.execute("begin; insert into a values (1, 'x'); savepoint s; insert into a values (2, 'x'); rollback to s")
            c.execute("insert into b values (1, 'x'); truncate a, b; insert into a values (5, 'x'); commit")
        captured.drain()
    assert bool(streamed(captured)) == streaming
    seen = {(e["op"], e["row"]["id"], e["id"][1]) for t in ("a", "b") for e in captured.events(t)}
    truncates = {o for op, _, o in seen if op == "truncate"}
    assert truncates == {3, 4}
    assert {s for s in seen if s[0] == "insert"} == {("insert", 1, 1), ("insert", 1, 2), ("insert", 5, 5)}


def test_interleaved_transactions_come_whole_and_in_the_order_of_their_commits(
    database_that_streams: Database, tmp_path: Path
) -> None:
    database = database_that_streams
    captured = Captured(database, tmp_path)
    with captured.running():
        with database.connect() as one, database.connect() as two, database.connect() as three:
            one.execute("begin; insert into a values (1, 'one')")
            two.execute("begin; insert into a values (2, 'two')")
            captured.drain()
            assert captured.events("a") == [], "an open transaction is nobody's business"
            three.execute("insert into b values (3, 'three')")
            one.execute("insert into b values (1, 'one')")
            two.execute("insert into b values (2, 'two')")
            captured.drain()
            assert pairs(captured, "b") == [("insert", 3, "three")]
            two.execute("commit")
            one.execute("insert into a values (11, 'one')")
            one.execute("commit")
            three.execute("begin; insert into b values (4, 'gone')")
            captured.drain()
            three.execute("rollback")
        captured.drain()
    assert pairs(captured, "a") == [("insert", 2, "two"), ("insert", 1, "one"), ("insert", 11, "one")]
    assert pairs(captured, "b") == [("insert", 3, "three"), ("insert", 2, "two"), ("insert", 1, "one")]
    positions = [s.last for s in captured.slices()]
    assert positions == sorted(positions)


def test_what_was_streamed_and_not_committed_comes_again_after_a_restart(database_that_streams: Database, tmp_path: Path) -> None:
    database = database_that_streams
    captured = Captured(database, tmp_path)
    with database.connect() as one:
        with captured.running():
            one.execute("begin; insert into a select n, 'x' from generate_series(1, 50) n")
            database.execute("insert into b values (1, 'y')")
            captured.drain()
            captured.link.confirm(captured.slices()[-1].last)
        one.execute("insert into a values (51, 'x'); commit")
    with captured.running():
        captured.drain()
    assert [e["row"]["id"] for e in captured.events("a")] == list(range(1, 52))
    assert pairs(captured, "b") == [("insert", 1, "y")]


def test_tables_changed_inside_a_streamed_transaction(database_that_streams: Database, tmp_path: Path) -> None:
    database = database_that_streams
    captured = Captured(database, tmp_path)
    with captured.running():
        with database.connect() as one:
            database.execute("insert into a values (0, 'before')")
            one.execute("begin; insert into a values (1, 'x'); alter table a add column n int; insert into a values (2, 'y', 7)")
            one.execute("savepoint s; alter table a add column gone int; insert into a values (3, 'z', 8, 9); rollback to s")
            one.execute("insert into a values (4, 'w', 10)")
            database.execute("insert into b values (1, 'meanwhile')")
            one.execute("commit")
            database.execute("insert into a values (5, 'after', 11)")
        captured.drain()
    rows = [e["row"] for e in captured.events("a")]
    assert rows == [
        {"id": 0, "v": "before"},
        {"id": 1, "v": "x"},
        {"id": 2, "v": "y", "n": 7},
        {"id": 4, "v": "w", "n": 10},
        {"id": 5, "v": "after", "n": 11},
    ]
    assert all("gone" not in names for names in ({c.name for c in b.table.columns} for b in captured.batches()))


def test_a_description_from_a_rolled_back_part_still_counts_when_it_is_the_only_one(
    database_that_streams: Database, tmp_path: Path
) -> None:
    """The server describes a table once in a transaction, even if that was in a part that was rolled back."""
    captured = Captured(database_that_streams, tmp_path)
    with captured.running():
        with database_that_streams.connect() as c:
            c.execute(
                "begin; savepoint s; insert into a values (1, 'gone'); rollback to s; insert into a values (2, 'kept'); commit"
            )
        captured.drain()
    assert pairs(captured, "a") == [("insert", 2, "kept")]


def test_a_table_described_anew_by_others_is_read_by_the_newer_description_after_the_commit(
    database_that_streams: Database, tmp_path: Path
) -> None:
    """A publication's column list changes while a transaction that described the table before it is open."""
    database = database_that_streams
    captured = Captured(database, tmp_path)
    with captured.running():
        with database.connect() as one, database.connect() as two:
            one.execute("begin; insert into a values (1, 'x')")
            captured.drain()
            database.execute("alter publication penstock_flow set table a (id), b")
            two.execute("begin; insert into a values (2, 'y')")
            captured.drain()
            two.execute("commit")
            one.execute("commit")
            database.execute("insert into a values (3, 'z')")
        captured.drain()
    assert [e["row"] for e in captured.events("a")] == [{"id": 2}, {"id": 1, "v": "x"}, {"id": 3}]


def test_two_phase_commits_are_not_lost(tmp_path: Path) -> None:
    with EmbeddedPostgres(settings={"max_prepared_transactions": "10", "fsync": "off"}) as server:
        database = Database(server, "postgres")
        database.execute("create table a (id int primary key, v text)")
        captured = Captured(database, tmp_path)
        with captured.running():
            with database.connect() as c:
                c.execute("begin; insert into a values (1, 'x'); prepare transaction 'p1'")
                c.execute("begin; insert into a values (2, 'x'); prepare transaction 'p2'")
            captured.drain()
            assert captured.events("a") == []
            captured.link.confirm(captured.source.head())
        database.execute("commit prepared 'p1'")
        database.execute("rollback prepared 'p2'")
        with captured.running():
            captured.drain()
        assert pairs(captured, "a") == [("insert", 1, "x")]


def test_a_slot_made_for_two_phase_decoding_is_refused(database: Database) -> None:
    database.execute("create table a (id int primary key)")
    database.execute("select pg_create_logical_replication_slot('penstock_flow', 'pgoutput', false, true)")
    source = PostgresSource("flow", PostgresOptions(dsn=database.dsn))
    with pytest.raises(SourceSettings, match="two-phase") as refused:
        source.prepare(None)
    source.close()
    for statement in str(refused.value.remedy).partition(": ")[2].partition(" Or set")[0].split(";")[:2]:
        database.execute(statement)
    source.prepare(None)
    source.close()


def test_a_huge_row_inside_a_streamed_transaction(
    database_that_streams: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "BUFFER_BYTES", 300_000)
    monkeypatch.setattr(assembly, "SLICE_BYTES", 40_000)
    monkeypatch.setattr(assembly, "HUGE_BYTES", 100_000)
    captured = Captured(database_that_streams, tmp_path)
    with captured.running():
        with database_that_streams.connect() as c:
            c.execute("begin; insert into a values (1, 'x'); savepoint s; insert into a values (2, repeat('g', 1000000))")
            c.execute("rollback to s; insert into a values (3, repeat('k', 900000)); insert into a values (4, 'y')")
            c.execute("insert into a select n, repeat('p', 1000) from generate_series(5, 200) n; commit")
        captured.drain()
    seen = pairs(captured, "a")
    assert [(i, len(v or "")) for _, i, v in seen[:3]] == [(1, 1), (3, 900000), (4, 1)]
    assert [i for _, i, _ in seen[3:]] == list(range(5, 201))
    assert [e["id"][1] for e in captured.events("a")] == list(range(1, len(seen) + 1))


def test_every_bucket_together_has_each_change_once(database_that_streams: Database, tmp_path: Path) -> None:
    captured = Captured(database_that_streams, tmp_path)
    with captured.running():
        with database_that_streams.connect() as c:
            c.execute(
                "begin; insert into a select n, 'x' from generate_series(1, 100) n; savepoint s; delete from a; rollback to s"
            )
            c.execute("update a set v = 'y' where id % 3 = 0; commit")
        captured.drain()
    found = [e["id"] for bucket in range(3) for e in captured.events("a", bucket, 3)]
    assert sorted(o for _, o in found) == list(range(1, 134))


def test_many_subtransactions_in_one_piece(database_that_streams: Database, tmp_path: Path) -> None:
    """A subtransaction per row, every second one rolled back: more than the walk keeps at once."""
    assert w.MOST_SHARES < 6000
    database = database_that_streams
    database.execute(f"alter database {database.name} reset debug_logical_replication_streaming")
    database.execute(f"alter database {database.name} set logical_decoding_work_mem = '64kB'")
    captured = Captured(database, tmp_path)
    with captured.running():
        database.execute(
            """
            do $$ begin for n in 1..6000 loop begin
              insert into a values (n, 'x'); if n % 2 = 0 then raise exception 'no'; end if;
            exception when raise_exception then null; end; end loop; end $$
            """
        )
        captured.drain()
    assert streamed(captured)
    assert [e["row"]["id"] for e in captured.events("a")] == list(range(1, 6001, 2))
    assert [e["id"][1] for e in captured.events("a")] == list(range(1, 3001))


def test_retention_keeps_the_pieces_of_an_open_transaction(
    database_that_streams: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.journal.writer.SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(JournalWriter.__init__, "__kwdefaults__", {"segment_bytes": 20_000, "patience": 10.0})
    database = database_that_streams
    captured = Captured(database, tmp_path)
    with captured.running():
        with database.connect() as one:
            one.execute("begin; insert into a values (1, 'first')")
            for n in range(300):
                database.execute(f"insert into b values ({n}, repeat('x', 300))")
            captured.drain()
            last = captured.slices()[-1].last
            retention.trim(tmp_path, last, 0, 0, now=2e10)
            one.execute("insert into a values (2, 'second'); commit")
        captured.drain()
    assert pairs(captured, "a") == [("insert", 1, "first"), ("insert", 2, "second")]
    first = min(s.segment for s in captured.slices() if s.flags & SliceFlag.STREAMED)
    passed = captured.slices()[-1].last
    with captured.running():
        for n in range(300, 400):
            database.execute(f"insert into b values ({n}, repeat('x', 300))")
        captured.drain()
    assert retention.trim(tmp_path, passed - 1, 0, 0, now=2e10) == []
    assert first in retention.trim(tmp_path, passed, 0, 0, now=2e10)


def test_ddl_of_a_rolled_back_savepoint_makes_no_table_version(database_that_streams: Database, tmp_path: Path) -> None:
    database = database_that_streams
    captured = Captured(database, tmp_path)
    with captured.running():
        database.execute("insert into a values (0, 'before')")
        with database.connect() as c:
            c.execute("begin; insert into b values (1, 'x'); savepoint s; alter table a add column gone int")
            c.execute("insert into a values (1, 'x', 9)")
            # What is not flushed is not sent, and what is rolled back before it is sent never is.
            database.execute("insert into b values (3, 'flush')")
            captured.drain()
            c.execute("rollback to s; insert into b values (2, 'y'); commit")
        database.execute("insert into a values (2, 'after')")
        captured.drain()
    assert streamed(captured)
    assert [e["row"] for e in captured.events("a")] == [{"id": 0, "v": "before"}, {"id": 2, "v": "after"}]
    catalog = Catalog(catalog_path(tmp_path))
    catalog.reach(10)
    assert all("gone" not in e.table.arrow.names for e in catalog.entries.values())


def frame(message: bytes) -> bytes:
    body = b"w" + bytes(24) + message
    return b"d" + struct.pack(">I", len(body) + 4) + body


RELATION = struct.pack(">I", 9) + b"public\0t\0d" + struct.pack(">H", 1) + b"\1id\0" + struct.pack(">Ii", 23, -1)
ROW = b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", 1) + b"1"


def transaction(position: int, filler: int) -> bytes:
    """A transaction of one row, and a message that makes it as long as it should be."""
    message = b"M\1" + struct.pack(">Q", 0) + b"p\0" + struct.pack(">I", filler) + bytes(filler)
    begin = b"B" + struct.pack(">QQI", position, 0, 5)
    commit = b"C\0" + struct.pack(">QQQ", position, position, 0)
    return b"".join(map(frame, (begin, message, b"I" + struct.pack(">I", 9) + ROW, commit)))


class Fed:
    """An assembly that is given the server's bytes by hand."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.journal = JournalWriter(directory, segment_bytes=2000)
        self.journal.begin(1)
        self._control = Control(database.dsn, "flow")
        self._made = assembly.Assembly(self.journal, RelationBook(self._control, TypeBook(self._control, True), {}, {}, 0))

    def feed(self, *messages: bytes, published: bool = True) -> None:
        data = b"".join(messages)
        self._made.room()[: len(data)] = data
        self._made.arrived(len(data))
        self._made.take()
        if published:
            self._made.publish(bare=True)

    def close(self) -> None:
        self.journal.close()
        self._control.close()


def chunk(number: int, *messages: bytes) -> bytes:
    """A chunk of a streamed transaction; its messages come without the id."""
    part = struct.pack(">I", number)
    inside = [frame(m[:1] + part + m[1:]) for m in messages]
    return b"".join([frame(b"S" + part + b"\1"), *inside, frame(b"E")])


def commit(number: int, position: int) -> bytes:
    return frame(b"c" + struct.pack(">I", number) + b"\0" + struct.pack(">QQQ", position, position, 0))


def test_of_two_streamed_transactions_the_newer_description_stays_in_force(database: Database, tmp_path: Path) -> None:
    """The older one commits last; the server has counted the newer one as told, and does not repeat it."""
    wide = struct.pack(">I", 9) + b"public\0t\0d" + struct.pack(">H", 2) + b"\1id\0" + struct.pack(">Ii", 23, -1)
    wide += b"\0v\0" + struct.pack(">Ii", 25, -1)
    cell = b"t" + struct.pack(">I", 1)
    row = b"I" + struct.pack(">I", 9) + b"N" + struct.pack(">H", 2) + cell + b"2" + cell + b"v"
    fed = Fed(database, tmp_path)
    fed.feed(chunk(7, b"R" + RELATION, b"I" + struct.pack(">I", 9) + ROW))
    fed.feed(chunk(8, b"R" + wide, row), commit(8, 20))
    fed.feed(commit(7, 30))
    end = b"C\0" + struct.pack(">QQQ", 40, 40, 0)
    fed.feed(frame(b"B" + struct.pack(">QQI", 40, 0, 5)), frame(row), frame(end))
    fed.close()
    reader, tail, slices = SliceReader(tmp_path), JournalTail(tmp_path, 1), list[Slice]()
    while part := tail.read():
        slices += part
    rows = [r for b in PostgresDecoder().decode(reader, slices, 0, 1, lambda t: True) for r in b.rows.to_pylist()]
    tail.close()
    reader.close()
    assert sorted(map(str, rows)) == sorted(map(str, [{"id": 2, "v": "v"}, {"id": 1}, {"id": 2, "v": "v"}]))


def test_retention_knows_what_has_committed_and_is_not_published_yet(database: Database, tmp_path: Path) -> None:
    """A roll between a streamed transaction's commit and its note: its old segments stay until it is passed."""
    fed = Fed(database, tmp_path)
    begin, end = b"B" + struct.pack(">QQI", 10, 0, 5), b"C\0" + struct.pack(">QQQ", 10, 10, 0)
    fed.feed(frame(begin), frame(b"R" + RELATION), frame(end))
    fed.feed(chunk(7, b"R" + RELATION, b"I" + struct.pack(">I", 9) + ROW))
    for position in range(20, 120, 10):
        fed.feed(transaction(position, 900))
    fed.journal._segment_bytes = 1 << 20
    fed.feed(commit(7, 200), published=False)
    fed.journal._segment_bytes = 1
    fed.feed(transaction(210, 900))
    fed.journal._segment_bytes = 2000
    for position in range(300, 350, 10):
        fed.feed(transaction(position, 900))
    fed.close()
    retention.trim(tmp_path, 190, 0, 0, now=2e10)
    reader = SliceReader(tmp_path)
    tail = JournalTail(tmp_path, 190)
    while found := tail.read():
        reader.read(found)
    tail.close()
    reader.close()
    assert retention.trim(tmp_path, 340, 0, 0, now=2e10)
