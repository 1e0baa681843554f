"""Types that only the server's catalogue knows, and how stream and catalogue describe them."""

from __future__ import annotations

import decimal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.schema import Column, TableSchema
from penstock.destinations.duckdb.types import duckdb_type
from penstock.destinations.unrepresentable import settle
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from penstock.sources.postgres.types import arrow_type
from tests.conftest import Database
from tests.sources.postgres.captured import Captured
from tests.sources.postgres.reading import assert_same, make_hostile, read_both

MADE = """
create schema other;
create type other."Mood swing" as enum ('a', 'b');
create domain whole as int;
create domain smaller as whole check (value < 100);
create domain price as numeric(10,2);
create domain other.bargain as price;
create domain ident as uuid;
create domain prices as numeric(10,2)[];
create domain short as varchar(10);
create domain moment as timestamptz(3);
create domain document as jsonb;
create type pair as (a int, b price);
create extension citext;
create extension ltree
"""
COLUMNS = [
    ("other.\"Mood swing\"", "'a'", pa.string(), 'other."Mood swing"', ""),
    ("whole", "7", pa.int32(), "public.whole", "integer"),
    ("smaller", "8", pa.int32(), "public.smaller", "integer"),
    ("price", "1.5", pa.decimal128(10, 2), "public.price", "numeric(10,2)"),
    ("other.bargain", "2.5", pa.decimal128(10, 2), "other.bargain", "numeric(10,2)"),
    ("ident", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", pa.string(), "public.ident", "uuid"),
    ("prices", "'{1,2.555}'", pa.string(), "public.prices", "numeric(10,2)[]"),
    ("short", "'abc'", pa.string(), "public.short", "character varying(10)"),
    ("moment", "'2024-01-01 00:00:00.1236+00'", pa.timestamp("us", "UTC"), "public.moment", "timestamp(3) with time zone"),
    ("document", "'[1]'", pa.string(), "public.document", "jsonb"),
    ("pair", "row(1, 2)", pa.string(), "public.pair", ""),
    ("pair[]", "array[row(1, 2)::pair]", pa.string(), "public.pair[]", ""),
    ("other.\"Mood swing\"[]", "'{a,b}'", pa.string(), 'other."Mood swing"[]', ""),
    ("citext", "'Ab'", pa.string(), "public.citext", ""),
    ("ltree", "'Top.Science'", pa.string(), "public.ltree", ""),
    ("bit(3)", "B'101'", pa.string(), "bit(3)", ""),
    ("varbit(5)", "B'1'", pa.string(), "bit varying(5)", ""),
    ("varbit", "B'1'", pa.string(), "bit varying", ""),
    ("char(5)", "'ab'", pa.string(), "character(5)", ""),
    ("timestamp(3)", "'2024-01-01'", pa.timestamp("us"), "timestamp(3) without time zone", ""),
    ("time(0)", "'12:00'", pa.time64("us"), "time(0) without time zone", ""),
    ("timetz(2)", "'12:00:00.123+02'", pa.string(), "time(2) with time zone", ""),
    ("interval day to second(3)", "'1 day 00:00:01.23456'", pa.string(), "interval day to second(3)", ""),
    ("numeric(12,-3)", "1234567", pa.decimal128(15, 0), "numeric(12,-3)", ""),
    ("numeric(2,5)", "0.00012", pa.decimal128(5, 5), "numeric(2,5)", ""),
    ("numeric(38,38)", "0.1", pa.decimal128(38, 38), "numeric(38,38)", ""),
    ("numeric(39,1)", "0.1", pa.string(), "numeric(39,1)", ""),
    ("xid", "'4294967295'", pa.uint32(), "xid", ""),
    ("money", "'-1234.5'", pa.decimal128(19, 2), "money", ""),
    ("int4multirange", "'{[1,3)}'", pa.string(), "int4multirange", ""),
]  # fmt: skip


def make(database: Database) -> None:
    database.execute(MADE)
    columns = ", ".join(f"c{i} {kind}" for i, (kind, *_) in enumerate(COLUMNS))
    database.execute(f"create table t (id int primary key, {columns}, twice int generated always as (id * 2) stored)")


def discovered(database: Database, **options: Any) -> list[TableSchema]:
    with closing(PostgresSource("flow", PostgresOptions(dsn=database.dsn, **options))) as source:
        return source.discover()


def insert() -> str:
    return f"insert into t values (1, {', '.join(literal for _, literal, *_ in COLUMNS)}), (2{', null' * len(COLUMNS)})"


def test_types_of_the_database_are_resolved_alike_by_stream_catalogue_and_snapshot(database: Database, tmp_path: Path) -> None:
    make(database)
    make_hostile(database)
    streamed, copied = read_both(database, tmp_path, "t", insert())
    wanted = tuple(Column(f"c{i}", arrow, native, base) for i, (_, _, arrow, native, base) in enumerate(COLUMNS))
    assert streamed.table.columns[1:] == wanted
    assert_same(streamed, copied)
    (found,) = discovered(database)
    assert found.columns == streamed.table.columns
    assert TableSchema.from_data(found.to_data()) == found
    row = streamed.rows.to_pylist()[0]
    assert [row[f"c{i}"] for i in (1, 2, 3, 4)] == [7, 8, decimal.Decimal("1.50"), decimal.Decimal("2.50")]
    assert [row[f"c{i}"] for i in (23, 24, 28)] == [
        decimal.Decimal(1235000),
        decimal.Decimal("0.00012"),
        decimal.Decimal("-1234.5"),
    ]
    assert duckdb_type(streamed.table.columns[6]) == "UUID" and duckdb_type(streamed.table.columns[10]) == "JSON"
    assert set(streamed.rows.to_pylist()[1].values()) == {2, None}


def test_without_resolving_types_of_the_database_are_text(database: Database, tmp_path: Path) -> None:
    database.execute("create domain whole as int; create type mood as enum ('a')")
    database.execute("create table t (id int primary key, w whole, m mood, n numeric(4,1), b bit(3))")
    with Captured(database, tmp_path, resolve_types=False).running() as captured:
        database.execute("insert into t values (1, 2, 'a', 3, B'101')")
        captured.drain()
    (batch,) = captured.batches()
    assert [c.type for c in batch.table.columns] == [pa.int32(), pa.string(), pa.string(), pa.decimal128(4, 1), pa.string()]
    assert batch.rows.to_pylist() == [{"id": 1, "w": "2", "m": "a", "n": decimal.Decimal(3), "b": "101"}]
    assert [c.native.split()[0] for c in batch.table.columns] == ["integer", "oid", "oid", "numeric(4,1)", "bit"]
    (found,) = discovered(database, resolve_types=False)
    assert found.columns == batch.table.columns


def test_a_type_that_is_gone_when_its_rows_are_read_is_text(database: Database, tmp_path: Path) -> None:
    database.execute("create domain whole as int; create table t (id int primary key, w whole)")
    captured = Captured(database, tmp_path)
    database.execute("insert into t values (1, 2)")
    database.execute("alter table t alter w type int; drop domain whole; insert into t values (2, 3)")
    with captured.running():
        captured.drain()
    assert [(e["version"], e["row"]) for e in captured.events("t")] == [(1, {"id": 1, "w": "2"}), (2, {"id": 2, "w": 3})]


def test_an_odd_value_of_an_old_row_is_kept_and_counted(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, at timestamptz, n numeric(5,1)); alter table t replica identity full")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (0, now(), 1), (1, 'infinity', 'NaN')")
        database.execute("update t set at = '-infinity', n = 0 where id = 1")
        captured.drain()
    (batch,) = captured.batches()
    assert {name: (o.rows.to_pylist(), o.texts.to_pylist()) for name, o in batch.before_odd.items()} == {
        "at": ([2], ["infinity"]),
        "n": ([2], ["NaN"]),
    }
    counted: Counter[str] = Counter()
    settle(batch, "null", counted, before=False)
    assert counted == {"public.t": 3}
    settle(batch, "null", counted)
    assert counted == {"public.t": 8}
    last = batch.filter(pa.array([False, False, True]))
    assert last.before_odd["n"].rows.to_pylist() == [0]


@pytest.mark.parametrize(
    ("shape", "arrow"),
    [((1000, 0), pa.string()), ((3, 38), pa.decimal128(38, 38)), ((3, 39), pa.string()), ((30, -8), pa.decimal128(38, 0)),
     ((31, -8), pa.string())],
)  # fmt: skip
def test_a_numeric_is_a_decimal_as_far_as_38_digits_reach(shape: tuple[int, int], arrow: pa.DataType) -> None:
    precision, scale = shape
    assert arrow_type(1700, ((precision << 16) | (scale & 0x7FF)) + 4) == arrow
