"""Tables in PostgreSQL: made from the source's schema, changed with it, and never two sources in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.core.schema import Column, TableSchema
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.types import keeps
from penstock.errors import SchemaRefused, TruncateRefused
from tests.batches import insert, table, truncate, update
from tests.conformance.harness import Harness, work
from tests.destinations.postgres.subject import asked
from tests.formats.values import EVERY

ONE = table({"id": pa.int64(), "v": pa.int32()})


def types(target: Harness, name: str = "orders") -> dict[str, str]:
    sql = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 AND attrelid = "
    return dict(asked(target.home, f"{sql}'public.{name}'::regclass"))


def test_the_key_is_the_primary_key_in_its_order(target: Harness) -> None:
    target.destination.prepare([table({"a": pa.int64(), "v": pa.int32(), "b": pa.string()}, key=("b", "a"))])
    sql = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'public.orders'::regclass AND contype = 'p'"
    assert asked(target.home, sql) == [("PRIMARY KEY (b, a)",)]


def test_a_source_of_another_kind_gets_types_that_hold_its_values(target: Harness) -> None:
    foreign = TableSchema(
        "public", "orders", tuple(Column(c.name, c.type, f"strange {c.native}!") for c in EVERY.columns), EVERY.key, 1
    )
    target.destination.prepare([foreign])
    found = types(target)
    assert {
        name: found[name] for name in ("id", "boolean", "oid", "xid8", "uuid", "json", "bytes", "money", "huge", "instant")
    } == {
        "id": "bigint",
        "boolean": "boolean",
        "oid": "bigint",
        "xid8": "numeric(20,0)",
        "uuid": "text",
        "json": "text",
        "bytes": "bytea",
        "money": "numeric(12,2)",
        "huge": "numeric(38,0)",
        "instant": "timestamp with time zone",
    }


def test_a_type_of_the_same_name_and_another_kind_is_not_taken(target: Harness) -> None:
    asked(
        target.home,
        "CREATE DOMAIN public.amount AS text; CREATE TYPE public.state AS ENUM ('new'); CREATE DOMAIN public.age AS int",
    )
    columns = (
        Column("id", pa.int64(), "bigint"),
        Column("a", pa.decimal128(8, 2), "public.amount", "numeric(8,2)"),
        Column("s", pa.string(), "public.state"),
        Column("n", pa.int32(), "public.age", "integer"),
        Column("gone", pa.int32(), "public.gone", "integer"),
        Column("lost", pa.string(), "public.lost[]"),
        Column("unresolved", pa.string(), "oid 16400"),
    )
    target.destination.prepare([TableSchema("public", "orders", columns, ("id",), 1)])
    assert types(target) == {
        "id": "bigint",
        "a": "numeric(8,2)",
        "s": "state",
        "n": "age",
        "gone": "integer",
        "lost": "text",
        "unresolved": "text",
    }


def evolved(kind: pa.DataType, native: str) -> TableSchema:
    return table({"id": pa.int64(), "v": (kind, native)}, version=2)


@pytest.mark.parametrize(
    ("kind", "native", "becomes"),
    [
        (pa.int64(), "bigint", "bigint"),
        (pa.int16(), "smallint", "integer"),
        (pa.decimal128(12, 2), "numeric(12,2)", "numeric(12,2)"),
        (pa.string(), "numeric", "numeric"),
        (pa.string(), "text", "text"),
    ],
    ids=str,
)
def test_a_type_changes_when_nothing_is_lost(target: Harness, kind: pa.DataType, native: str, becomes: str) -> None:
    target.deliver(1, work(ONE, [insert({"id": 1, "v": 41})]))
    target.deliver(2, work(evolved(kind, native), [insert({"id": 2, "v": "42" if kind == pa.string() else 42}, position=1001)]))
    assert types(target)["v"] == becomes
    assert asked(target.home, "SELECT id, v::text::numeric FROM public.orders ORDER BY id") == [(1, 41), (2, 42)]


@pytest.mark.parametrize(
    ("before", "after", "native"),
    [
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), "timestamp with time zone"),
        (pa.decimal128(5, 2), pa.int32(), "integer"),
        (pa.date32(), pa.bool_(), "boolean"),
        (pa.float64(), pa.float32(), "real"),
    ],
    ids=str,
)
def test_a_type_change_that_could_lose_is_refused(target: Harness, before: pa.DataType, after: pa.DataType, native: str) -> None:
    target.destination.prepare([table({"id": pa.int64(), "v": before})])
    kind = types(target)["v"]
    if native == "real":
        target.destination.prepare([evolved(after, native)])
    else:
        with pytest.raises(SchemaRefused) as refused:
            target.destination.prepare([evolved(after, native)])
        assert "ALTER TABLE" in refused.value.remedy and refused.value.facts["column"] == "v"
    assert types(target)["v"] == kind


@pytest.mark.parametrize(
    ("present", "wanted", "held"),
    [
        ("text", "public.mood", True),
        ("character varying(5)", "character varying(4)", True),
        ("character varying(4)", "character varying(5)", False),
        ("character varying(4)", "text", False),
        ("numeric(10,2)", "numeric(9,1)", True),
        ("numeric(10,2)", "numeric(9,3)", False),
        ("numeric(10,2)", "numeric", False),
        ("numeric(20,0)", "bigint", True),
        ("numeric(10,0)", "bigint", False),
        ("integer", "numeric(3,0)", False),
        ("timestamp(3) without time zone", "timestamp without time zone", False),
    ],
)
def test_what_holds_what(present: str, wanted: str, held: bool) -> None:
    assert keeps(present, wanted) is held


def test_a_dropped_column_stays_and_is_no_longer_written(target: Harness) -> None:
    wide = table({"id": pa.int64(), "v": pa.int32(), "old": pa.string()})
    target.deliver(1, work(wide, [insert({"id": 1, "v": 1, "old": "x"})]))
    target.deliver(
        2,
        work(
            table({"id": pa.int64(), "v": pa.int32()}, version=2),
            [update({"id": 1, "v": 5}, position=1001), insert({"id": 2, "v": 2}, position=1002)],
        ),
    )
    assert asked(target.home, "SELECT id, v, old FROM public.orders ORDER BY id") == [(1, 5, "x"), (2, 2, None)]


def test_a_table_that_was_there_is_used_if_its_key_is_unique(target: Harness) -> None:
    asked(target.home, "CREATE TABLE public.orders (v bigint, id bigint GENERATED ALWAYS AS IDENTITY)")
    with pytest.raises(SchemaRefused) as refused:
        target.destination.prepare([ONE])
    asked(target.home, refused.value.remedy.partition(";")[0])
    target.deliver(1, work(ONE, [insert({"id": 5, "v": 1})]))
    target.deliver(2, work(ONE, [update({"id": 5, "v": 2}, position=1001)]))
    assert asked(target.home, "SELECT id, v FROM public.orders") == [(5, 2)]


def test_a_generated_column_is_refused(target: Harness) -> None:
    asked(target.home, "CREATE TABLE public.orders (id bigint PRIMARY KEY, v int GENERATED ALWAYS AS (1) STORED)")
    with pytest.raises(SchemaRefused, match="generated"):
        target.destination.prepare([ONE])


@pytest.mark.parametrize(("template", "problem"), [("all", "would both be"), ("{schema}_" + "é" * 30 + "{table}", "63 bytes")])
def test_names_that_would_become_one_are_refused(tmp_path: Path, template: str, problem: str) -> None:
    target = Harness("postgres", tmp_path, table_template=template)
    with pytest.raises(SchemaRefused, match=problem):
        target.destination.prepare([ONE, table({"id": pa.int64()}, name="other")])
    target.close()


def test_our_own_tables_are_not_overwritten(target: Harness) -> None:
    with pytest.raises(SchemaRefused, match="positions"):
        target.destination.prepare([table({"id": pa.int64()}, schema="penstock", name="positions")])


def test_a_table_is_not_copied_onto_itself(tmp_path: Path) -> None:
    target = Harness("postgres", tmp_path)
    asked(tmp_path, "SELECT pg_create_logical_replication_slot('penstock_flow', 'pgoutput')")
    try:
        with pytest.raises(SchemaRefused, match="itself") as refused:
            target.destination.prepare([ONE])
        assert "schema_template" in refused.value.remedy
        beside = Harness("postgres", tmp_path, schema_template="copy_{schema}")
        beside.destination.prepare([ONE])
        beside.close()
    finally:
        target.close()
        asked(tmp_path, "SELECT pg_drop_replication_slot('penstock_flow')")


def test_templates_say_where_tables_go(tmp_path: Path) -> None:
    target = Harness("postgres", tmp_path, schema_template="copy", table_template="{schema}__{table}")
    target.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    assert asked(target.home, 'SELECT * FROM copy."public__orders"') == [(1, 1)]
    assert asked(
        target.home, "SELECT source_schema, source_table, target_schema, target_table, version FROM penstock.tables"
    ) == [("public", "orders", "copy", "public__orders", 1)]
    target.close()


@pytest.mark.parametrize(("policy", "left"), [("apply", []), ("ignore", [(1, 1)])])
def test_truncate_follows_its_policy(tmp_path: Path, policy: str, left: list[Any]) -> None:
    target = Harness("postgres", tmp_path, on_truncate=policy)
    target.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    receipts = target.deliver(2, [(ONE, [[truncate(position=1001)]] * 2)])
    assert [receipt["counts"] for receipt in receipts] == [{"truncates_ignored": 1} if left else {}, {}]
    assert asked(target.home, "SELECT * FROM public.orders") == left
    target.close()


def test_truncate_can_halt(tmp_path: Path) -> None:
    target = Harness("postgres", tmp_path, on_truncate="halt")
    target.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    with pytest.raises(TruncateRefused):
        target.deliver(2, work(ONE, [truncate(position=1001)]))
    assert asked(target.home, "SELECT * FROM public.orders") == [(1, 1)]
    target.close()


def test_a_table_dropped_under_the_flow_is_made_again_when_it_is_prepared(target: Harness) -> None:
    target.deliver(1, work(ONE, [insert({"id": 1, "v": 1})]))
    asked(target.home, "DROP TABLE public.orders")
    target.deliver(2, work(ONE, [insert({"id": 2, "v": 2}, position=1001)]))
    assert asked(target.home, "SELECT * FROM public.orders") == [(2, 2)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "dsn"),
        ({"dsn": ""}, "at least 1"),
        ({"dsn": "postgresql://u:secret%zz@h/d"}, "not a connection string"),
        ({"dsn": "host=a", "synchronous_commit": "maybe"}, "remote_apply"),
        ({"dsn": "host=a", "sync": 1}, "Extra"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        PostgresOptions.model_validate(options)


def test_the_dsn_is_not_shown() -> None:
    assert "hunter2" not in repr(PostgresOptions(dsn="postgresql://u:hunter2@h/d"))
