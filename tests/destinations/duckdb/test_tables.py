"""Tables in DuckDB: made from the source's schema, changed with it, and never two sources in one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.core.schema import TableSchema
from penstock.destinations.base import Held
from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.errors import SchemaRefused, TableWithoutKey, TruncateRefused, ValueRefused
from tests.batches import delete, insert, move, table, truncate, update
from tests.conformance.harness import Harness, work
from tests.formats.values import EVERY, HARD

ONE = table({"id": pa.int64(), "v": pa.int32()})


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[Harness]:
    made = Harness("duckdb", tmp_path)
    yield made
    made.close()


def test_a_row_that_a_constraint_refuses_names_its_table_and_changes_nothing(duck: Harness) -> None:
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    duck.close()
    with duckdb.connect(str(duck.home / "target.duckdb")) as connection:
        connection.execute("CREATE OR REPLACE TABLE public.orders (id BIGINT, v INTEGER CHECK (v < 10))")
    with pytest.raises(ValueRefused) as refused:
        duck.deliver(2, work(ONE, [insert({"id": 2, "v": 2}), insert({"id": 3, "v": 50}, ordinal=2)]))
    assert refused.value.facts == {"table": "public.orders"} and "50" not in refused.value.message
    assert asked(duck, "SELECT * FROM public.orders") == []
    assert duck.destination.committed() == Held(1000, 1)


def asked(duck: Harness, sql: str) -> list[tuple[Any, ...]]:
    duck.close()
    with duckdb.connect(str(duck.home / "target.duckdb"), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def types(duck: Harness, name: str = "orders") -> dict[str, str]:
    return dict(asked(duck, f"SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = '{name}'"))


def test_columns_have_the_types_of_the_source(duck: Harness) -> None:
    duck.destination.prepare([EVERY])
    assert types(duck) == {
        "id": "BIGINT",
        "boolean": "BOOLEAN",
        "small": "SMALLINT",
        "whole": "INTEGER",
        "big": "BIGINT",
        "oid": "UINTEGER",
        "xid8": "UBIGINT",
        "real": "FLOAT",
        "double": "DOUBLE",
        "text": "VARCHAR",
        "long_text": "VARCHAR",
        "uuid": "UUID",
        "json": "JSON",
        "bytes": "BLOB",
        "money": "DECIMAL(12,2)",
        "fine": "DECIMAL(38,38)",
        "huge": "DECIMAL(38,0)",
        "wide": "VARCHAR",
        "date": "DATE",
        "time": "TIME",
        "timestamp": "TIMESTAMP",
        "instant": "TIMESTAMP WITH TIME ZONE",
    }


def test_every_value_arrives_exactly(duck: Harness) -> None:
    rows = [{"id": n, **{k: v[n % len(v)] for k, v in HARD.items()}} for n in range(1, 40)]
    rows.append({"id": 99, **dict.fromkeys(HARD)})
    duck.deliver(1, work(EVERY, [insert(row, ordinal=row["id"]) for row in rows]))
    duck.close()
    found = {row["id"]: row for row in duck.subject.rows(duck.home, EVERY)}
    for row in rows:
        for name, value in row.items():
            there = found[row["id"]][name]
            if name == "uuid" and value is not None:
                there = str(there)
            elif name == "wide" and value is not None:
                value = f"{value:.10f}"
            elif name == "real" and value is not None:
                value = pa.scalar(value, pa.float32()).as_py()
            nan = isinstance(value, float) and math.isnan(value)
            assert math.isnan(there) if nan else there == value, name


@pytest.mark.parametrize("name", ["uuid", "text", "money", "date", "instant", "bytes", "double", "huge", "boolean"])
def test_keys_of_any_type_are_found_again(duck: Harness, name: str) -> None:
    kind = next(column for column in EVERY.columns if column.name == name)
    schema = table({"k": (kind.type, kind.native), "v": pa.int32(), "big": pa.string()}, key=("k",))
    first, second = (["00000000-0000-0000-0000-000000000001", *HARD["uuid"]] if name == "uuid" else (HARD[name] * 2))[:2]
    if name == "instant":
        first = first.replace(year=2000)
    if name == "double":
        second = 2.5
    duck.deliver(
        1, work(schema, [insert({"k": first, "v": 1, "big": "a"}), insert({"k": second, "v": 2, "big": "b"}, ordinal=2)])
    )
    duck.deliver(2, work(schema, [update({"k": first, "v": 3}, position=1001), delete({"k": second}, position=1001, ordinal=2)]))
    duck.deliver(3, work(schema, move({"k": first}, {"k": second, "v": 4}, position=2001)))
    assert asked(duck, "SELECT v, big FROM public.orders") == [(4, "a")]


def test_table_without_key_is_refused_with_the_statement_that_helps(duck: Harness) -> None:
    with pytest.raises(TableWithoutKey) as refused:
        duck.destination.prepare([table({"id": pa.int64()}, key=(), name='a"b')])
    assert 'ALTER TABLE "public"."a""b" ADD PRIMARY KEY' in refused.value.remedy


@pytest.mark.parametrize("apart", [True, False], ids=["in two calls", "in one call"])
def test_tables_that_differ_by_case_are_not_merged(duck: Harness, apart: bool) -> None:
    other = table({"id": pa.int64(), "v": pa.int32()}, name="Orders")
    if apart:
        duck.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
        duck.close()
    with pytest.raises(SchemaRefused) as refused:
        duck.destination.prepare([other] if apart else [ONE, other])
    assert "public.orders" in refused.value.message and "public.Orders" in refused.value.message
    assert "table_template" in refused.value.remedy


def test_columns_that_differ_by_case_are_refused(duck: Harness) -> None:
    with pytest.raises(SchemaRefused, match="columns a and A"):
        duck.destination.prepare([table({"id": pa.int64(), "a": pa.int32(), "A": pa.int32()})])


def test_two_tables_sent_to_one_are_refused(tmp_path: Path) -> None:
    duck = Harness("duckdb", tmp_path, table_template="all")
    with pytest.raises(SchemaRefused):
        duck.destination.prepare([ONE, table({"id": pa.int64()}, name="other")])
    duck.close()


def test_our_own_tables_are_not_overwritten(duck: Harness) -> None:
    with pytest.raises(SchemaRefused, match="positions"):
        duck.destination.prepare([table({"id": pa.int64()}, schema="penstock", name="Positions")])


def test_templates_say_where_tables_go(tmp_path: Path) -> None:
    duck = Harness("duckdb", tmp_path, schema_template="main", table_template="{schema}__{table}")
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    assert asked(duck, 'SELECT * FROM main."public__orders"') == [(1, 1)]


def evolved(kind: pa.DataType, native: str = "") -> TableSchema:
    return table({"id": pa.int64(), "v": (kind, native)}, version=2)


def test_a_dropped_column_stays_and_gets_null(duck: Harness) -> None:
    wide = table({"id": pa.int64(), "v": pa.int32(), "old": pa.string()})
    duck.deliver(1, work(wide, [insert({"id": 1, "v": 1, "old": "x"}), insert({"id": 2, "v": 2, "old": "y"}, ordinal=2)]))
    duck.deliver(2, work(table({"id": pa.int64(), "v": pa.int32()}, version=2), [update({"id": 1, "v": 5}, position=1001)]))
    assert asked(duck, "SELECT id, v, old FROM public.orders ORDER BY id") == [(1, 5, None), (2, 2, "y")]


@pytest.mark.parametrize(
    ("kind", "native", "becomes"),
    [
        (pa.int64(), "bigint", "BIGINT"),
        (pa.int16(), "smallint", "INTEGER"),
        (pa.decimal128(12, 2), "numeric(12,2)", "DECIMAL(12,2)"),
        (pa.float64(), "double precision", "DOUBLE"),
        (pa.string(), "text", "VARCHAR"),
    ],
    ids=str,
)
def test_a_type_changes_when_nothing_is_lost(duck: Harness, kind: pa.DataType, native: str, becomes: str) -> None:
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": 41})]))
    value = "42" if kind == pa.string() else 42
    duck.deliver(2, work(evolved(kind, native), [insert({"id": 2, "v": value}, position=1001)]))
    assert types(duck)["v"] == becomes
    assert asked(duck, "SELECT id, v::VARCHAR::DOUBLE FROM public.orders ORDER BY id") == [(1, 41.0), (2, 42.0)]


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        (pa.string(), "not a number", pa.int32()),
        (pa.string(), "007", pa.int32()),
        (pa.decimal128(5, 2), "1.25", pa.int32()),
        (pa.timestamp("us"), 0, pa.timestamp("us", "UTC")),
        (pa.int64(), 2**40, pa.int16()),
    ],
    ids=str,
)
def test_a_type_change_that_would_lose_is_refused_and_changes_nothing(
    duck: Harness, before: pa.DataType, value: Any, after: pa.DataType
) -> None:
    held = pa.array([value]).cast(before)[0].as_py()
    duck.deliver(1, work(table({"id": pa.int64(), "v": before}), [insert({"id": 1, "v": held})]))
    kind = types(duck)["v"]
    if before == pa.int64():
        # A column that can hold more than the source's is left as it is.
        duck.destination.prepare([evolved(after)])
    else:
        with pytest.raises(SchemaRefused) as refused:
            duck.destination.prepare([evolved(after)])
        assert "ALTER TABLE" in refused.value.remedy
        assert str(held) not in refused.value.message
    assert types(duck)["v"] == kind


@pytest.mark.parametrize(("policy", "left"), [("apply", []), ("ignore", [(1, 1)])])
def test_truncate_follows_its_policy(tmp_path: Path, policy: str, left: list[Any]) -> None:
    duck = Harness("duckdb", tmp_path, on_truncate=policy)
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    receipts = duck.deliver(2, [(ONE, [[truncate(position=1001)]] * 2)])
    assert [receipt["counts"] for receipt in receipts] == [{"truncates_ignored": 1} if left else {}, {}]
    assert asked(duck, "SELECT * FROM public.orders") == left


def test_truncate_can_halt(tmp_path: Path) -> None:
    duck = Harness("duckdb", tmp_path, on_truncate="halt")
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    with pytest.raises(TruncateRefused):
        duck.deliver(2, work(ONE, [truncate(position=1001)]))
    assert asked(duck, "SELECT * FROM public.orders") == [(1, 1)]


def test_an_unchanged_value_of_a_row_that_is_not_there_is_null(duck: Harness) -> None:
    schema = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string(), "more": pa.string()})
    duck.deliver(1, work(schema, [update({"id": 1, "v": 2, "more": "m"}), update({"id": 2, "v": 3, "big": "b"}, ordinal=2)]))
    assert asked(duck, "SELECT * FROM public.orders ORDER BY id") == [(1, 2, None, "m"), (2, 3, "b", None)]


def test_the_position_is_where_anyone_can_read_it(duck: Harness) -> None:
    duck.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    duck.deliver(2, [])
    sql = "SELECT flow, destination, source, position, epoch, generation, committed_at IS NOT NULL FROM penstock.positions"
    assert asked(duck, sql) == [("flow", "duckdb", "src1", 2000, 2, 1, True)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "exactly one"),
        ({"path": "a", "dsn": "b"}, "exactly one"),
        ({"path": ":memory:"}, "lost"),
        ({"dsn": "duckdb::memory:"}, "lost"),
        ({"path": "a", "threads": 0}, "greater"),
        ({"path": "a", "pth": 1}, "Extra"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        DuckDBOptions.model_validate(options)


@pytest.mark.parametrize("dsn", ["/tmp/x.duckdb", "duckdb:/tmp/x.duckdb", "duckdb:///tmp/x.duckdb"])
def test_a_dsn_is_another_way_to_say_path(dsn: str) -> None:
    assert DuckDBOptions(dsn=dsn).file == Path("/tmp/x.duckdb")
