"""Values arrive as the source has them: the servers' own texts of both sides are compared."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.core.batch import Batch
from penstock.destinations.postgres.cells import TEXT, cells
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.snapshot import Snapshot, select
from penstock.sources.postgres.source import PostgresSource
from tests.batches import batch, delete, insert, move, table
from tests.conformance.harness import Harness
from tests.conftest import Database
from tests.destinations.duckdb.test_odd import odd
from tests.destinations.postgres.subject import asked
from tests.sources.postgres.families import FAMILIES
from tests.sources.postgres.reading import FACTS, NO_FACTS, make_hostile, plain
from tests.sources.postgres.test_properties import AT_ONCE, INSERT, SEED
from tests.sources.postgres.test_properties import TYPES as FAMILY_TYPES
from tests.sources.postgres.test_type_cases import TYPES as CASE_TYPES

DATED = table(
    {"d": pa.date32(), "at": pa.timestamp("us", "UTC"), "t": pa.time64("us"), "n": pa.decimal128(9, 2), "v": pa.int32()},
    key=("d",),
)


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """A second database on the same server."""
    with second(database) as made:
        yield made


@pytest.fixture
def each_other(each_database: Database) -> Iterator[Database]:
    """A second database on each server."""
    with second(each_database) as made:
        yield made


@contextmanager
def second(database: Database) -> Iterator[Database]:
    made = Database(database.server, f"{database.name}_target")
    database.server.run(f"CREATE DATABASE {made.name}")
    yield made
    database.server.run(f"DROP DATABASE {made.name} WITH (FORCE)")


def batches(database: Database) -> list[Batch]:
    """Every table of the database, read as a snapshot."""
    source = PostgresSource("flow", PostgresOptions(dsn=database.dsn))
    tables = source.discover()
    source.close()
    with Snapshot(database.dsn, "flow") as snapshot:
        return [part for t in tables for part in snapshot.read(t, f"{select(t)} ORDER BY id", position=7, read_at=1)]


def deliver(harness: Harness, number: int, made: list[Batch]) -> dict[str, Any]:
    """One epoch of those batches; returns what the receipt counts."""
    epoch = harness.epoch(number)
    harness.destination.prepare([b.table for b in made])
    receipt = harness.writer().write(epoch, 0, iter(made))
    harness.destination.commit(epoch, [receipt])
    harness.close()
    return dict(receipt["counts"])


def look(database: Database) -> psycopg.Connection[tuple[Any, ...]]:
    """A session in which every type's own output function writes what the stream has."""
    connection = plain(database)
    for setting in ("extra_float_digits = 1", "bytea_output = hex", "lc_monetary = 'C'", "search_path = ''"):
        connection.execute(f"set {setting}".encode())
    return connection


def texts(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> list[tuple[str | None, ...]]:
    """Every cell of a table as text."""
    cells = ", ".join(f"case when {c}::text is not null then format('%s', {c}) end" for c in sorted(kinds(connection, name)))
    return connection.execute(f"select {cells} from public.{name} order by id".encode()).fetchall()


def kinds(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> dict[str, str]:
    """The types of a table's columns."""
    sql = "select attname, format_type(atttypid, atttypmod) from pg_attribute where attrelid = %s::regclass and attnum > 0"
    return dict(connection.execute(sql, [f"public.{name}"]).fetchall())


def to(database: Database, home: Path) -> Harness:
    """A destination that writes to the database, however hostile its settings."""
    make_hostile(database)
    return Harness("postgres", home, dsn=database.dsn)


@pytest.mark.skipif(NO_FACTS, reason="the table of cases stands beside the checkout")
@pytest.mark.parametrize(
    ("way", "types"),
    [(way, "with the source's types") for way in ("arrays", "copy", "pour")] + [("arrays", "without them")],
    indirect=["way"],
)
def test_every_case_arrives_as_the_source_has_it(
    each_database: Database, each_other: Database, tmp_path: Path, types: str, way: str
) -> None:
    database, other = each_database, each_other
    there = {name for (name,) in database.rows("select name from pg_available_extensions")}
    cases = [case for line in FACTS.read_text(encoding="utf-8").splitlines() if (case := json.loads(line))]
    cases = [case for case in cases if case["extension"] is None or case["extension"] in there]
    assert len(cases) >= 150
    extensions = sorted({case["extension"] for case in cases} - {None})
    for made in (database, other) if types == "with the source's types" else (database,):
        with plain(made) as connection:
            for extension in extensions:
                connection.execute(f"create extension {extension}".encode())
            connection.execute(CASE_TYPES.encode())
    with plain(database) as connection:
        columns = ", ".join(f"c{c['id']} {c['type']}" for c in cases)
        connection.execute(f"create table t (id int primary key, {columns})".encode())
        connection.execute(f"insert into t values (1, {', '.join(c['literal'] for c in cases)})".encode())
    assert deliver(to(other, tmp_path), 1, batches(database)) == {}
    with look(database) as source, look(other) as copy:
        assert texts(copy, "t") == texts(source, "t")
        named, found = kinds(source, "t"), kinds(copy, "t")
    same = {name for name in named if named[name] == found[name]}
    if types == "with the source's types":
        assert {named[name] for name in named.keys() - same} == {"regclass"}
    else:
        assert {found[name] for name in named.keys() - same} == {"text", "integer"}
        assert found["c187"] == "integer" and found["c186"] == "text"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["arrays", "pour"], indirect=True)
def test_values_by_chance_arrive_as_the_source_has_them(database: Database, other: Database, tmp_path: Path, way: str) -> None:
    sys.stdout.write(f"PENSTOCK_SEED={SEED}\n")
    r = random.Random(SEED)
    for made in (database, other):
        made.execute(FAMILY_TYPES)
    with plain(database) as connection:
        for i, family in enumerate(FAMILIES):
            connection.execute(f"create table f{i} (id bigserial primary key, v {family.type})".encode())
            connection.execute(INSERT.format(i=i, type=family.type).encode(), [[family.text(r) for _ in range(AT_ONCE)]])
    assert deliver(to(other, tmp_path), 1, batches(database)) == {}
    with look(database) as source, look(other) as copy:
        for i, family in enumerate(FAMILIES):
            assert kinds(copy, f"f{i}") == kinds(source, f"f{i}"), family.type
            assert texts(copy, f"f{i}") == texts(source, f"f{i}"), family.type


def test_odd_keys_are_found_again_moved_and_removed(target: Harness, way: str) -> None:
    first = [insert({"d": None, "at": None, "t": None, "n": None, "v": v}, ordinal=v) for v in (1, 2)]
    strange = {
        "d": odd((0, "infinity"), (1, "-infinity")),
        "at": odd((0, "-infinity"), (1, "294276-12-31 23:59:59.999999+00")),
        "t": odd((1, "24:00:00")),
        "n": odd((0, "NaN")),
    }
    assert deliver(target, 1, [batch(DATED, first, strange)]) == {}
    sql = 'SELECT d::text, "at"::text, t::text, n::text, v FROM public.orders ORDER BY v'
    assert asked(target.home, sql) == [
        ("infinity", "-infinity", None, "NaN", 1),
        ("-infinity", "294276-12-31 23:59:59.999999+00", "24:00:00", None, 2),
    ]
    changes = [
        *move({"d": None}, {"d": None, "t": None, "n": None, "v": 3}, position=1001),
        delete({"d": None}, position=1002),
    ]
    made = batch(DATED, changes, {"d": odd((0, "infinity"), (1, "2024-01-01"), (2, "-infinity"))})
    made = replace(
        made, rows=made.rows.set_column(0, "d", pa.array([None, 7, None], pa.date32())), before_odd={"d": odd((1, "infinity"))}
    )
    made = replace(made, odd={"d": odd((0, "infinity"), (2, "-infinity"))})
    assert deliver(target, 2, [made]) == {}
    assert asked(target.home, sql) == [("1970-01-08", "-infinity", None, None, 3)]


def test_uuids_in_another_form_are_read_by_the_server(target: Harness, way: str) -> None:
    schema = table({"id": pa.int64(), "u": (pa.string(), "uuid")})
    forms = ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12}", None]
    deliver(target, 1, [batch(schema, [insert({"id": n, "u": u}, ordinal=n) for n, u in enumerate(forms, 1)])])
    assert asked(target.home, "SELECT u::text FROM public.orders ORDER BY id") == [
        ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",),
        ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12",),
        (None,),
    ]


def test_bytes_behind_a_null_are_not_sent() -> None:
    offsets = pa.py_buffer(pa.array([0, 3, 5], pa.int32()).buffers()[1])
    hidden = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), offsets, pa.py_buffer(b"abcde")])
    assert hidden.to_pylist() == [None, "de"]
    assert bytes(cells(hidden, TEXT).data) == b"\xff\xff\xff\xff\x00\x00\x00\x02de"
