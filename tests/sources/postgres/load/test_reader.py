"""Chunk files: whole or not there, equal to the stream value for value and bucket for bucket, and honest about their table."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.batch import Image, Op
from penstock.core.schema import TableSchema
from penstock.errors import ChunkDamaged, JournalUnwritable, PenstockError, ReadStopped, ReadTooLong, TableChanged, TableGone
from penstock.sources.postgres.load import copying, rows
from penstock.sources.postgres.load.file import ChunkFile
from penstock.sources.postgres.load.reader import PostgresChunkReader
from tests.conftest import Database
from tests.processes import wait_until
from tests.sources.postgres.captured import Captured
from tests.sources.postgres.load.loads import loading
from tests.sources.postgres.reading import NO_FACTS, assert_same, make_hostile, plain
from tests.sources.postgres.test_snapshot import HARD
from tests.sources.postgres.test_type_cases import NATIVE, TYPES, cases

FILL = "create table t (id int primary key, v text); insert into t select g, repeat('x', 99) || g from generate_series(1, {n}) g"


@pytest.mark.skipif(NO_FACTS, reason="the table of cases stands beside the checkout")
def test_every_known_case_is_the_same_through_a_file_as_through_the_stream(database: Database, tmp_path: Path) -> None:
    found = cases(database)
    database.execute(TYPES)
    for extension in sorted({c["extension"] for c in found} - {None}):
        database.execute(f"create extension {extension}")
    columns = ", ".join(f"c{c['id']} {c['type']}" for c in found)
    database.execute(f"create table t (id int primary key, {columns})")
    make_hostile(database)
    with Captured(database, tmp_path / "journal").running() as captured:
        with plain(database) as connection:
            connection.execute(f"insert into t values (1, {', '.join(c['literal'] for c in found)})".encode())
        captured.drain()
    (streamed,) = captured.batches()
    with loading(database, tmp_path) as load:
        (chunk,) = load.plan(streamed.table)
        path, _ = load.read(chunk, table=streamed.table)
        (copied,) = load.decode(path, streamed.table)
    assert_same(streamed, copied)


@pytest.mark.skipif(NO_FACTS, reason="the table of cases stands beside the checkout")
def test_every_case_that_has_a_binary_form_is_the_same_in_it(each_database: Database, tmp_path: Path) -> None:
    database = each_database
    found = [c for c in cases(database) if has_form(c["type"])]
    assert len(found) > 75
    database.execute(TYPES)
    columns = ", ".join(f"c{c['id']} {c['type']}" for c in found)
    database.execute(f"create table t (id int primary key, {columns})")
    make_hostile(database)
    with Captured(database, tmp_path / "journal").running() as captured:
        with plain(database) as connection:
            values = ", ".join(c["literal"] for c in found)
            connection.execute(f"insert into t values (1, {values}); insert into t values (2)".encode())
            connection.execute(f"insert into t values (3, {values})".encode())
        captured.drain()
    assert_form_keeps_rows(database, tmp_path, captured)


def has_form(name: str) -> bool:
    """Whether a table with such a column can be read in binary form."""
    plain_name, _, shape = name.partition("(")
    if name.endswith("[]"):
        return False
    if plain_name == "numeric":
        return bool(shape) and int(shape.rstrip(")").partition(",")[0]) <= 38
    texts = {"text", "varchar", "character varying", "char", "character", "bpchar", "name", "json", "jsonb", "uuid", "mood"}
    return plain_name in texts | set(NATIVE) - {"money", "xid8"}


def assert_form_keeps_rows(database: Database, directory: Path, captured: Captured) -> None:
    streamed = captured.batches()
    with loading(database, directory, snapshot_format="binary") as load:
        path, receipt = load.read(load.plan(streamed[0].table)[0], table=streamed[0].table)
        with ChunkFile(path) as file:
            assert file.head["forms"]
        (copied,) = load.decode(path, streamed[0].table)
    assert receipt.rows == len(copied) == sum(map(len, streamed))
    at = np.argsort(copied.rows.column("id").to_numpy())
    number = 0
    for batch in streamed:
        for i in range(len(batch)):
            assert_same(batch.slice(i, 1), copied.slice(int(at[number]), 1))
            number += 1


def test_moments_and_numbers_at_the_edges_are_the_same_in_binary_form(each_database: Database, tmp_path: Path) -> None:
    database = each_database
    shapes = [(12, 2), (38, 0), (38, 38), (38, 19), (4, 0), (1, 1), (20, 7)]
    numbers = ", ".join(f"n{i} numeric({digits}, {scale})" for i, (digits, scale) in enumerate(shapes))
    database.execute(f"create table t (id int primary key, {numbers}, d date, m timestamp, z timestamptz, f float4, g float8)")
    some = "random()::numeric ^ (g % 40) * case when g % 2 = 0 then 1 else -1 end"
    sums = ", ".join(
        f"case when g % 17 = 0 then 'NaN' when g % 13 = 0 then 0"
        f" else trunc({some} * (10::numeric ^ {digits - scale} - 1), {scale}) end"
        for digits, scale in shapes
    )
    moments = """array['infinity', '-infinity', '294246-12-31 23:59:59.999999', '294247-01-01', '294276-12-31 23:59:59.1',
        '4713-01-01 00:00:00 BC', '0001-12-31 23:59:59.000001 BC', '0001-01-01', '1969-12-31 23:59:59.999999', '2000-01-01',
        '294250-02-28 12:00:00.000020', null]"""
    days = "array['infinity', '-infinity', '5874897-12-31', '4713-01-01 BC', '0001-12-31 BC', '1969-12-31', '2000-02-29', null]"
    floats = "array['NaN', 'Infinity', '-Infinity', '-0', '1e-40', '3.4028235e38', '0.1', null]"
    with Captured(database, tmp_path / "journal").running() as captured:
        with plain(database) as connection:
            connection.execute(
                f"insert into t select g, {sums}, ({days})[1 + g % 8]::date, ({moments})[1 + g % 12]::timestamp,"
                f" ({moments})[1 + (g + 3) % 12]::timestamptz, ({floats})[1 + g % 8]::float4,"
                f" coalesce((array['5e-324', '1.7976931348623157e308'])[1 + g % 11]::float8, random() * g)"
                " from generate_series(1, 500) g".encode()
            )
        captured.drain()
    assert_form_keeps_rows(database, tmp_path, captured)


@pytest.mark.parametrize(("other", "form"), [("int", "text"), ("int", "binary"), ("inet", "binary")])
def test_hard_texts_rows_larger_than_any_buffer_and_many_blocks_pass(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, form: str
) -> None:
    monkeypatch.setattr(copying, "_BUFFER", 10_000)
    monkeypatch.setattr(rows, "STEP_BYTES", 15_000)
    database.execute(f"create table t (id int primary key, v text, o {other})")
    values = [*HARD, "repeat('h', 200000)", *["repeat('v', 77)"] * 700, "repeat('l', 9990)", "repeat('m', 10001)"]
    with Captured(database, tmp_path / "journal").running() as captured:
        for start in range(0, len(values), 100):
            part = enumerate(values[start : start + 100], start)
            database.execute(f"insert into t values {', '.join(f'({i}, {v})' for i, v in part)}")
        captured.drain()
    streamed = pa.Table.from_batches([b.rows for b in captured.batches()])
    with loading(database, tmp_path, snapshot_format=form) as load:
        table = captured.batches()[0].table
        path, receipt = load.read(load.plan(table)[0], table=table)
        with ChunkFile(path) as file:
            assert bool(file.head["forms"]) == (form == "binary" and other == "int")
        batches = load.decode(path, table)
    assert len(batches) > 2 and receipt.rows == len(values) == streamed.num_rows
    assert pa.Table.from_batches([b.rows for b in batches]).equals(streamed)
    assert [o for b in batches for o in b.ordinal.to_pylist()] == list(range(101, 101 + len(values)))


@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_key_is_in_the_bucket_in_which_the_stream_has_it(database: Database, tmp_path: Path, form: str) -> None:
    database.execute(
        "create table one (id int primary key, v text); create table none (v text); alter table none replica identity full"
    )
    database.execute("create table two (a text, b numeric, v text, primary key (b, a))")
    database.execute("create table four (a text, b smallint, c bigint, d uuid, primary key (d, c, b, a))")
    with Captured(database, tmp_path / "journal").running() as captured:
        database.execute(
            "insert into one select g, 'x' from generate_series(1, 300) g;"
            "insert into none select 'n' || g from generate_series(1, 50) g;"
            "insert into two select E'tab\\t\\\\' || g, g / 7.0, 'x' from generate_series(1, 300) g;"
            "insert into four select 'tab' || g, (g - 150) * 10,"
            " case g when 1 then 0 else 9223372036854775807 / g * (-1) ^ g end, md5(g::text)::uuid from generate_series(1, 300) g"
        )
        captured.drain()
    with loading(database, tmp_path, snapshot_format=form) as load:
        for name in ("one", "two", "four", "none"):
            for bucket in range(3):
                streamed = [b for b in captured.batches(bucket, 3) if b.table.name == name]
                (table,) = {b.table for b in captured.batches() if b.table.name == name}
                path, _ = load.read(load.plan(table)[0], table=table)
                found = load.decode(path, table, bucket, 3)
                assert [b.rows.to_pylist() for b in found] == [b.rows.to_pylist() for b in streamed], (name, bucket)
                assert all(op == Op.SNAPSHOT for b in found for op in b.op.to_pylist())
            ordinals = [o for k in range(3) for b in load.decode(path, table, k, 3) for o in b.ordinal.to_pylist()]
            assert sorted(ordinals) == [100 + i for i in range(1, len(ordinals) + 1)]


def test_a_list_of_keys_gives_the_rows_there_are_and_deletes_for_the_others(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table t (a text, n numeric, v text, primary key (n, a)) partition by hash (a);"
        "create table t1 partition of t for values with (modulus 2, remainder 0);"
        "create table t2 partition of t for values with (modulus 2, remainder 1);"
        "insert into t select 'it''s \"' || g || E'\\\\', g / 2.0, 'v' || g from generate_series(1, 20) g"
    )
    with loading(database, tmp_path) as load:
        table = load.table("t")
        asked = [f"it's \"{g}\\" for g in (3, 4, 99, 3)]
        keys = pa.RecordBatch.from_pydict({"n": ["1.5", "2.0", "7", "1.5"], "a": asked})
        (chunk,) = load.source.key_chunks(table, keys)
        path, receipt = load.read(type(chunk).from_data(json.loads(json.dumps(chunk.to_data()))), table=table)
        found, gone = load.decode(path, table)
        assert receipt.rows == 2 and sorted(found.rows.column("v").to_pylist()) == ["v3", "v4"]
        assert gone.rows.select(["a", "v"]).to_pylist() == [{"a": "it's \"99\\", "v": None}]
        assert gone.op.to_pylist() == [Op.DELETE] and gone.image.to_pylist() == [Image.KEY]
        identities = found.ordinal.to_pylist() + gone.ordinal.to_pylist()
        assert len(set(identities)) == 3 and min(identities) > 100
        parts = [b for k in range(4) for b in load.decode(path, table, k, 4)]
        assert sorted(o for b in parts for o in b.ordinal.to_pylist()) == sorted(identities)
        assert load.source.key_chunks(table, keys.slice(0, 0)) == []


def test_keys_that_a_filter_hides_are_deletes(database: Database, tmp_path: Path) -> None:
    database.execute(FILL.format(n=9) + "; create publication p for table t where (id > 5)")
    with loading(database, tmp_path, publication="p") as load:
        (chunk,) = load.source.key_chunks(load.table("t"), pa.RecordBatch.from_pydict({"id": ["3", "7"]}))
        path, _ = load.read(chunk)
        assert [(b.op[0].as_py(), b.rows.column("id").to_pylist()) for b in load.decode(path, load.table("t"))] == [
            (Op.SNAPSHOT, [7]),
            (Op.DELETE, [3]),
        ]


def test_reading_again_gives_the_same_file_and_two_at_once_do_not_meet(database: Database, tmp_path: Path) -> None:
    database.execute(FILL.format(n=20000))
    with loading(database, tmp_path) as load:
        (chunk,) = load.plan()
        hold = load.source.hold_snapshot()
        first, receipt = load.read(chunk, hold.name)
        data = first.read_bytes()
        database.execute("delete from t where id > 5")
        failures: list[BaseException] = []

        def again() -> None:
            reader = PostgresChunkReader(load.source.reading())
            try:
                assert reader.read(chunk, load.table("t"), hold.name, first).checksum == receipt.checksum
            except BaseException as error:
                failures.append(error)
            finally:
                reader.close()

        threads = [threading.Thread(target=again) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hold.close()
    assert not failures
    assert first.read_bytes()[-200_000:] == data[-200_000:] and sorted(tmp_path.iterdir()) == [first]


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "longer", "missing"])
def test_a_file_that_is_not_whole_is_never_read(
    database: Database, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_BUFFER", 10_000)
    monkeypatch.setattr(rows, "STEP_BYTES", 15_000)
    database.execute(FILL.format(n=2000))
    with loading(database, tmp_path) as load:
        (chunk,) = load.plan()
        path, _ = load.read(chunk)
        data = bytearray(path.read_bytes())
        if how == "flipped":
            data[2000] ^= 4
        sizes = {"cut": len(data) * 2 // 3, "empty": 0}
        path.write_bytes(bytes(data[: sizes.get(how, len(data))]) + (b"x" if how == "longer" else b""))
        if how == "missing":
            path.unlink()
        with pytest.raises(ChunkDamaged) as damaged:
            next(load.reader.decode(path, load.table("t"), position=1, ordinal_base=0, read_at=0))
        assert damaged.value.retry == "timed"
        load.read(chunk)


def test_a_read_that_fails_or_is_stopped_leaves_no_file_and_no_query(database: Database, tmp_path: Path) -> None:
    database.execute(FILL.format(n=50000))
    with loading(database, tmp_path) as load:
        (chunk,) = load.plan()
        calls = iter([False, False, True])
        reader = PostgresChunkReader(load.source.reading(rate=100_000))
        with pytest.raises(ReadStopped):
            reader.read(chunk, load.table("t"), None, tmp_path / "stopped", stopping=lambda: next(calls, True))
        (broken,) = load.plan(where="1 / (40000 - id) < 2")
        with pytest.raises(PenstockError, match="22012"):
            load.rows(broken)
        with pytest.raises(JournalUnwritable):
            reader.read(chunk, load.table("t"), None, tmp_path / "nowhere" / "chunk")
        reader.close()
        assert list(tmp_path.iterdir()) == []
        running = "select 1 from pg_stat_activity where query like 'COPY%' and state = 'active' and datname = current_database()"
        wait_until(lambda: not database.rows(running))
        assert load.count([chunk]).total() == 50000


def test_a_cancelled_read_says_what_to_do(database: Database, tmp_path: Path) -> None:
    database.execute(FILL.format(n=2000))
    cancel = "select pg_cancel_backend(pid) from pg_stat_activity where query like 'COPY%' and datname = current_database()"

    def stopping() -> bool:
        database.execute(cancel)
        return False

    with loading(database, tmp_path) as load:
        (chunk,) = load.plan(where="pg_sleep(0.1) is not null")
        with pytest.raises(ReadTooLong) as refused:
            load.read(chunk, stopping=stopping)
    assert "statement_timeout" in refused.value.remedy and list(tmp_path.iterdir()) == []


CHANGES = {
    "truncate": ("truncate t; insert into t values (1, 'new')", TableChanged),
    "vacuum full": ("vacuum full t", TableChanged),
    "rewrite": ("alter table t alter id type bigint", TableChanged),
    "new column type": ("alter table t alter v type varchar(9999)", TableChanged),
    "column renamed": ("alter table t rename v to w", TableChanged),
    "column dropped": ("alter table t drop v", TableChanged),
    "made anew": ("alter table t rename to t_old; create table t (id int primary key, v text); drop table t_old", TableGone),
    "dropped": ("drop table t", TableGone),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_changed_between_plan_and_read_is_noticed(database: Database, tmp_path: Path, change: str) -> None:
    database.execute(FILL.format(n=3000))
    statements, error = CHANGES[change]
    with loading(database, tmp_path) as load:
        hold = load.source.hold_snapshot()
        shared = load.plan(target_bytes=100_000)
        alone = load.plan(target_bytes=100_000, common_snapshot=False)
        assert {c.kind for c in shared + alone} == {"ctid", "key"}
        for statement in statements.split("; "):
            database.execute(statement)
        assert database.rows("select 1") == [(1,)]
        for chunk in (shared[0], alone[-1]):
            with pytest.raises(error):
                load.rows(chunk, hold.name)
        with pytest.raises(error):
            load.rows(shared[0])
        if change in ("truncate", "vacuum full"):
            # In a snapshot of its own a chunk by key is right whatever happened before.
            assert load.count(alone).total() == (1 if change == "truncate" else 3000)
        else:
            with pytest.raises(error):
                load.rows(alone[0])
        hold.close()


def test_what_does_not_matter_is_no_change(database: Database, tmp_path: Path) -> None:
    database.execute(FILL.format(n=3000) + "; create table other (id int primary key)")
    with loading(database, tmp_path) as load:
        chunks = load.plan(load.table("t"), target_bytes=100_000)
        hold = load.source.hold_snapshot()
        database.execute("alter table t add w int; create index on t (v); update t set v = 'later' where id < 9; analyze t")
        database.execute("create schema s; alter table t set schema s; alter table s.t rename to renamed; create table t (x int)")
        assert load.count(chunks, hold.name).total() == 3000
        hold.close()


def test_a_table_that_is_younger_than_the_snapshot_has_no_rows_in_it(database: Database, tmp_path: Path) -> None:
    database.execute("create table old (id int primary key)")
    with loading(database, tmp_path) as load:
        hold = load.source.hold_snapshot()
        with database.connect() as connection:
            connection.execute("begin; create table t (id int primary key)")
            with connection.cursor().copy("copy t from stdin (freeze)") as copy:
                copy.write("1\n2\n")
            connection.execute("commit")
        (chunk,) = load.plan(load.table("t"))
        assert load.rows(chunk, hold.name) == [] and len(load.rows(chunk)) == 2
        hold.close()


def test_a_table_without_columns_keeps_its_count(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); insert into t select generate_series(1, 5)")
    with loading(database, tmp_path) as load:
        bare = TableSchema("public", "t", (), (), 1, load.table("t").identity)
        (chunk,) = load.plan(bare)
        path, receipt = load.read(chunk, table=bare)
        assert receipt.rows == 5 and [len(b) for b in load.decode(path, bare)] == [5]


def test_a_reader_goes_on_after_its_session_was_ended(database: Database, tmp_path: Path) -> None:
    database.execute(FILL.format(n=10))
    with loading(database, tmp_path) as load:
        (chunk,) = load.plan()
        assert len(load.rows(chunk)) == 10
        database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'penstock flow' and"
            " datname = current_database() and pid <> pg_backend_pid()"
        )
        assert len(load.rows(chunk)) == 10
