"""The snapshot path: what COPY gives equals what the stream gives, whatever the text, the size and the shape of the table."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.batch import Batch, Op
from penstock.core.schema import TableSchema
from penstock.errors import PenstockError, SourceFailed, SourceRights
from penstock.sources.postgres import snapshot as module
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.snapshot import Snapshot, select
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.processes import wait_until
from tests.sources.postgres.reading import assert_same, read_both

HARD = [
    "''", "'\\N'", "E'\\\\\\\\N'", "E'\\t'", "E'\\n'", "E'\\r'", "E'\\b\\f\\v'", "E'\\\\.'", "E'\\\\'", "E'\\\\\\\\'", "'\\x41'",
    "'\\101'", "E'\\x01\\x1f\\x7f'", "'NULL'", "'null'", "'ü💧'", "E'a\\tb\\nc\\\\d'", "E'\\\\t'", "E'ends with \\\\'", "' '",
    "null",
]  # fmt: skip


def table(database: Database) -> TableSchema:
    with closing(PostgresSource("flow", PostgresOptions(dsn=database.dsn))) as source:
        (found,) = source.discover()
    return found


def read(database: Database, schema: TableSchema, query: str | None = None) -> list[Batch]:
    with Snapshot(database.dsn, "flow") as snapshot:
        return list(snapshot.read(schema, query or select(schema), position=42, read_at=1_000_000))


def test_escapes_of_copy_are_undone(database: Database, tmp_path: Path) -> None:
    columns = ", ".join(f"c{i} text" for i in range(len(HARD)))
    database.execute(f"create table t (id int primary key, {columns}, last text)")
    rows = ", ".join(f"({n}, {', '.join(HARD[n:] + HARD[:n])}, {HARD[n]})" for n in range(len(HARD)))
    streamed, copied = read_both(database, tmp_path, "t", f"insert into t values {rows}")
    assert_same(streamed, copied)
    assert copied.rows.column("c1")[0].as_py() == "\\N" and copied.rows.column("c20")[0].as_py() is None


def test_every_row_has_its_place_and_the_given_position(database: Database) -> None:
    database.execute("create table t (id int primary key, v int); insert into t select g, g from generate_series(1, 5) g")
    schema = table(database)
    (batch,) = read(database, schema, f"{select(schema, where='id > 2')} ORDER BY id")
    assert batch.rows.column("id").to_pylist() == [3, 4, 5]
    assert batch.op.to_pylist() == [Op.SNAPSHOT] * 3 and batch.position.to_pylist() == [42] * 3
    assert batch.ordinal.to_pylist() == [1, 2, 3] and batch.xid.to_pylist() == [0] * 3
    assert batch.committed_at.cast(pa.int64()).to_pylist() == [1_000_000] * 3


def test_rows_come_in_batches_and_one_larger_than_the_buffer_passes(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_BYTES", 10_000)
    database.execute("create table t (id int primary key, v text)")
    database.execute("insert into t select g, repeat('v', 50) from generate_series(1, 3000) g")
    database.execute("insert into t values (3001, repeat('h', 200000)), (3002, 'x')")
    schema = table(database)
    batches = read(database, schema, f"{select(schema)} ORDER BY id")
    assert len(batches) > 10
    rows = pa.Table.from_batches([b.rows for b in batches])
    assert rows.column("id").to_pylist() == list(range(1, 3003))
    assert [o for b in batches for o in b.ordinal.to_pylist()] == list(range(1, 3003))
    assert len(rows.column("v")[3000].as_py()) == 200_000 and rows.column("v")[3001].as_py() == "x"


def test_an_empty_table_gives_nothing_and_the_session_reads_on(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    schema = table(database)
    with Snapshot(database.dsn, "flow") as snapshot:
        assert list(snapshot.read(schema, select(schema), position=1, read_at=1)) == []
        more = list(snapshot.read(schema, "SELECT g FROM pg_catalog.generate_series(1, 3) g", position=1, read_at=1))
    assert more[0].rows.to_pylist() == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_table_without_columns_keeps_its_count(database: Database) -> None:
    database.execute("create table t (); insert into t default values; insert into t default values")
    schema = TableSchema("public", "t", (), (), 1)
    assert [len(b) for b in read(database, schema)] == [2]


def test_partitions_and_heirs_are_read_as_the_stream_has_them(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table t (id int primary key, v text) partition by range (id);"
        "create table p partition of t for values from (0) to (9)"
    )
    streamed, copied = read_both(database, tmp_path, "t", "insert into t values (1, 'a'), (2, 'b')", only=False)
    assert_same(streamed, copied)
    database.execute(
        "drop table t; create table t (id int primary key, v text); create table heir (primary key (id)) inherits (t)"
    )
    database.execute("insert into t values (1, 'own'); insert into heir values (2, 'heir')")
    parent = streamed.table
    assert [b.rows.column("id").to_pylist() for b in read(database, parent)] == [[1]]


def test_generated_columns_are_absent_as_in_the_stream(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table t (id int primary key, twice int generated always as (id * 2) stored, c char(4), i inet, b bool)"
    )
    streamed, copied = read_both(database, tmp_path, "t", "insert into t (id, c, i, b) values (1, 'x', '10.0.0.1', true)")
    assert copied.rows.to_pylist() == [{"id": 1, "c": "x   ", "i": "10.0.0.1", "b": True}]
    assert_same(streamed, copied)


def test_everything_is_read_as_of_an_exported_snapshot(database: Database) -> None:
    database.execute("create table t (id int primary key); insert into t values (1)")
    schema = table(database)
    with database.connect() as holder:
        holder.execute("begin isolation level repeatable read")
        name = holder.execute("select pg_export_snapshot()").fetchall()[0][0]
        database.execute("insert into t values (2)")
        with Snapshot(database.dsn, "flow", exported=name) as snapshot:
            (batch,) = snapshot.read(schema, select(schema), position=1, read_at=1)
    assert batch.rows.to_pylist() == [{"id": 1}]


def test_an_error_of_the_server_in_the_middle_is_ours(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    schema = table(database)
    query = "SELECT 1 / (100000 - g) FROM pg_catalog.generate_series(1, 200000) g"
    with pytest.raises(SourceFailed, match="22012"):
        read(database, schema, query)
    with pytest.raises(PenstockError):
        read(database, schema, "SELECT nonsense")


def test_a_row_of_another_shape_is_refused(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    with pytest.raises(PenstockError, match="COPY"):
        read(database, table(database), "SELECT 1, 2")


def test_rows_hidden_by_a_policy_are_an_error_and_never_missing(database: Database) -> None:
    database.execute("create table t (id int primary key); insert into t values (1); alter table t enable row level security")
    role = f"r_{database.name}"
    database.execute(f"create role {role} login password 'p' replication; grant select on t to {role}")
    schema = table(database)
    dsn = database.dsn.replace(f"postgres:{database.server.password}", f"{role}:p")
    try:
        with pytest.raises(SourceRights), Snapshot(dsn, "flow") as snapshot:
            list(snapshot.read(schema, select(schema), position=1, read_at=1))
    finally:
        database.execute(f"drop owned by {role}; drop role {role}")


def test_a_read_that_is_given_up_leaves_no_session_behind(database: Database) -> None:
    database.execute("create table t (id int primary key)")
    schema = table(database)
    with Snapshot(database.dsn, "flow") as snapshot:
        rows = snapshot.read(schema, "SELECT g FROM pg_catalog.generate_series(1, 100000000) g", position=1, read_at=1)
        assert len(next(rows)) > 1000
    running = "select 1 from pg_stat_activity where query like 'COPY%' and datname = current_database()"
    wait_until(lambda: not database.rows(running))
