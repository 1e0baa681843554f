"""Every known case, through stream and snapshot, to Arrow, Parquet and DuckDB, under settings that are against it."""

from __future__ import annotations

import decimal
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.core.batch import Batch, Op
from penstock.destinations.base import Receipt
from penstock.destinations.files.reader import read_changes
from penstock.errors import ValueUnrepresentable
from penstock.formats.layout import rows_of
from tests.conformance.harness import Harness
from tests.conftest import Database
from tests.sources.postgres.reading import FACTS, NO_FACTS, assert_same, bits, make_hostile, odd_texts, plain, read_both

pytestmark = pytest.mark.skipif(NO_FACTS, reason="the table of cases stands beside the checkout")

TYPES = """
create type mood as enum ('sad', 'ok', 'happy', 'angry');
create domain posint as int check (value > 0);
create type inventory_item as (name text, supplier_id int, price numeric);
create type floatrange as range (subtype = float8)
"""
Case = dict[str, Any]
ODD = {84, 85, 93, 105, 108}
"""Cases that no Arrow type of their kind holds: infinite dates and timestamps, 24:00:00, a year that 64 bits do not reach."""
ODD_IN_DUCKDB = {105}
"""Those that DuckDB cannot hold either."""
NATIVE = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "posint": pa.int32(),
    "bigint": pa.int64(),
    "oid": pa.uint32(),
    "xid8": pa.uint64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "money": pa.decimal128(19, 2),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


def cases(database: Database) -> list[Case]:
    """The cases whose extension the server has."""
    found = [json.loads(line) for line in FACTS.read_text(encoding="utf-8").splitlines()]
    there = {name for (name,) in database.rows("select name from pg_available_extensions")}
    return [case for case in found if case["extension"] is None or case["extension"] in there]


@pytest.fixture
def database(each_database: Database) -> Database:
    """Every test on each major version."""
    return each_database


@pytest.fixture
def read(database: Database, tmp_path: Path) -> tuple[Batch, Batch]:
    """The cases as columns of one row, from the stream and from the snapshot."""
    found = cases(database)
    assert len(found) >= 150
    with plain(database) as connection:
        for extension in sorted({c["extension"] for c in found} - {None}):
            connection.execute(f"create extension {extension}".encode())
        connection.execute(TYPES.encode())
        columns = ", ".join(f"c{c['id']} {c['type']}" for c in found)
        connection.execute(f"create table t (id int primary key, {columns})".encode())
    make_hostile(database)
    values = ", ".join(c["literal"] for c in found)
    return read_both(database, tmp_path / "journal", "t", f"insert into t values (1, {values})")


def kind_of(case: Case) -> pa.DataType:
    """The Arrow type that the case's column must have."""
    name, _, shape = case["type"].partition("(")
    if shape.endswith("[]"):
        return pa.string()
    if name == "numeric" and shape:
        precision, _, scale = shape.rstrip(")").partition(",")
        return pa.decimal128(int(precision), int(scale or 0)) if int(precision) <= 38 else pa.string()
    return NATIVE.get(name, pa.string())


def value_of(case: Case, database: Database) -> Any:
    """The value that the case means, as its text says or as the server counts it."""
    text, kind = case["wire_text"], kind_of(case)
    if text is None or case["id"] in ODD:
        return None
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text == "t"
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(text.replace("$", "").replace(",", ""))
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_binary(kind):
        return bytes.fromhex(text[2:])
    with plain(database) as connection:
        if pa.types.is_date(kind):
            sql = f"select c{case['id']} - date '1970-01-01' from t"
        else:
            sql = f"select (extract(epoch from c{case['id']}) * 1000000)::int8 from t"
        return connection.execute(sql.encode()).fetchall()[0][0]


def expected(case: Case, database: Database) -> pa.Array:
    value, kind = value_of(case, database), kind_of(case)
    if pa.types.is_temporal(kind):
        return pa.array([value], pa.int32() if pa.types.is_date(kind) else pa.int64()).view(kind)
    return pa.array([value], kind)


def test_every_case_has_its_type_and_its_exact_value(read: tuple[Batch, Batch], database: Database) -> None:
    streamed, copied = read
    assert [Op(op) for batch in read for op in batch.op.to_pylist()] == [Op.INSERT, Op.SNAPSHOT]
    assert_same(streamed, copied)
    for batch in read:
        for case in cases(database):
            column = batch.rows.column(f"c{case['id']}")
            assert column.type == kind_of(case), case
            assert bits(column).equals(bits(expected(case, database))), case
        assert odd_texts(batch) == {f"c{c['id']}": [(0, c["wire_text"])] for c in cases(database) if c["id"] in ODD}


def test_the_native_type_is_named_as_the_server_names_it(read: tuple[Batch, Batch], database: Database) -> None:
    sql = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'public.t'::regclass and attnum > 0"
    )
    with database.connect() as connection:
        connection.execute("set search_path = ''")
        names = dict(connection.execute(sql.encode()).fetchall())
    assert {c.name: c.native for c in read[0].table.columns} == names
    assert names["c187"] == "public.posint" and next(c.base for c in read[0].table.columns if c.name == "c187") == "integer"


def test_parquet_keeps_every_value_or_counts_it(read: tuple[Batch, Batch], tmp_path: Path) -> None:
    for number, batch in enumerate(read):
        harness = Harness("files", tmp_path / f"files{number}", on_unrepresentable="null")
        receipt = deliver(harness, batch)
        assert receipt["counts"] == {"unrepresentable": len(ODD)}
        (changes,) = read_changes(harness.home / "log", "public", "t")
        kept = rows_of(changes)
        assert kept.schema.equals(batch.table.arrow, check_metadata=True)
        for name in kept.schema.names:
            assert bits(kept.column(name)).equals(bits(batch.rows.column(name))), name


def test_duckdb_keeps_every_value_or_counts_it(read: tuple[Batch, Batch], database: Database, tmp_path: Path) -> None:
    for number, batch in enumerate(read):
        harness = Harness("duckdb", tmp_path / f"duck{number}", on_unrepresentable="null")
        receipt = deliver(harness, batch)
        assert receipt["counts"] == {"unrepresentable": len(ODD_IN_DUCKDB)}
        with duckdb.connect(str(harness.home / "target.duckdb"), read_only=True) as connection:
            connection.execute("set timezone = 'UTC'")
            texts = ", ".join(f"c{i}::varchar c{i}" for i in ODD)
            odd = connection.execute(f"select {texts} from target.public.t").to_arrow_table().to_pylist()[0]
            kept = connection.execute("select * from target.public.t").to_arrow_table().combine_chunks()
        for case in cases(database):
            name = f"c{case['id']}"
            if case["id"] in ODD:
                assert odd[name] == (None if case["id"] in ODD_IN_DUCKDB else case["wire_text"]), case
            else:
                found, sent = kept.column(name).chunk(0), batch.rows.column(name)
                if isinstance(found.type, pa.BaseExtensionType) or found.type != sent.type:
                    found = pa.array([None if v is None else str(v) for v in found.to_pylist()], pa.string())
                assert bits(found).equals(bits(sent)), case


@pytest.mark.parametrize("name", ["files", "duckdb", "stdout"])
def test_a_value_without_a_home_is_one_clear_error(read: tuple[Batch, Batch], tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ValueUnrepresentable) as failure:
        deliver(Harness(name, tmp_path / name), read[0])
    assert "public.t" in str(failure.value) and "on_unrepresentable" in failure.value.remedy


def deliver(harness: Harness, batch: Batch) -> Receipt:
    epoch = harness.epoch(1)
    with harness.around():
        harness.destination.prepare([batch.table])
        receipt = harness.writer().write(epoch, 0, iter([batch]))
        harness.destination.commit(epoch, [receipt])
    harness.close()
    return receipt
