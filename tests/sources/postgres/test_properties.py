"""Values by chance, rendered by the server and read from stream and snapshot; what the server itself says of them decides."""

from __future__ import annotations

import os
import random
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.core.batch import Batch
from penstock.sources.postgres.snapshot import Snapshot, select
from tests.conftest import Database
from tests.sources.postgres.captured import Captured
from tests.sources.postgres.families import FAMILIES, Family
from tests.sources.postgres.reading import make_hostile, plain

SECONDS = float(os.environ.get("PENSTOCK_PROPERTY_SECONDS", "10"))
SEED = int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(1 << 32))
AT_ONCE = 40

TYPES = """
create extension hstore; create extension vector;
create type mood as enum ('sad', 'it''s ok', 'a,b');
create domain posint as int check (value >= 0);
create domain cheap as numeric(8,3);
create type item as (name text, n int, price numeric)
"""
# What no input function makes of these texts is not a value; the rest is.
INSERT = """
insert into f{i} (v) select x::{type} from unnest(%s::text[]) x where x is null or pg_input_is_valid(x, '{type}')
"""
LAST = "timestamp '294247-01-01'"
"""The first year that 64 bits of microseconds do not hold to its end."""


@pytest.mark.slow
def test_whatever_the_server_renders_is_read_exactly(database: Database, tmp_path: Path) -> None:
    sys.stdout.write(f"PENSTOCK_SEED={SEED}\n")
    database.execute(TYPES)
    for i, family in enumerate(FAMILIES):
        database.execute(f"create table f{i} (id bigserial primary key, v {family.type})")
    make_hostile(database)
    with Captured(database, tmp_path).running() as captured:
        fill(database)
        captured.drain()
    batches = captured.batches()
    rows = 0
    for i, family in enumerate(FAMILIES):
        streamed = [b for b in batches if b.table.name == f"f{i}"]
        truth = asked(database, i, streamed[0].table.columns[1].type)
        for path, found in (("stream", streamed), ("snapshot", snapshot(database, streamed[0]))):
            where, done = f"PENSTOCK_SEED={SEED} {family.type} by {path}", 0
            for batch in found:
                compare(where, batch, truth[done : done + len(batch)])
                done += len(batch)
            assert done == len(truth), where
        rows += len(truth)
    sys.stdout.write(f"{rows} values of {len(FAMILIES)} types\n")
    assert rows > AT_ONCE * len(FAMILIES) // 2


def fill(database: Database) -> None:
    """Values into every table until the time is over; the same ones in the same order for the same seed."""
    r = random.Random(SEED)
    end = time.monotonic() + SECONDS
    with plain(database) as connection:
        while True:
            for i, family in enumerate(FAMILIES):
                insert(connection, i, family, [family.text(r) for _ in range(AT_ONCE)])
            if time.monotonic() > end:
                return


def insert(connection: psycopg.Connection[Any], i: int, family: Family, texts: list[str | None]) -> None:
    connection.execute(INSERT.format(i=i, type=family.type).encode(), [texts])


def asked(database: Database, i: int, kind: pa.DataType) -> list[tuple[str | None, Any]]:
    """Per row the text of the type's own output function, and what the server counts or sends for the value."""
    with plain(database) as connection:
        for setting in ("extra_float_digits = 1", "bytea_output = hex", "lc_monetary = 'C'"):
            connection.execute(f"set {setting}".encode())
        sql = f"select case when v::text is not null then format('%s', v) end, {measure(kind)} from f{i} order by id"
        return connection.execute(sql.encode()).fetchall()


def measure(kind: pa.DataType) -> str:
    """SQL for what a value is, in a form that needs no reading of the text in question; NULL where Arrow has no such value."""
    if pa.types.is_floating(kind):
        return f"encode(float{kind.bit_width // 8}send(v), 'hex')"
    if pa.types.is_decimal(kind):
        return "case when v::numeric <> 'NaN' then v::numeric end"
    if pa.types.is_date(kind):
        return "case when isfinite(v) then v - date '1970-01-01' end"
    if pa.types.is_time(kind):
        return "case when v < '24:00' then (extract(epoch from v) * 1000000)::int8 end"
    if pa.types.is_timestamp(kind):
        return f"case when isfinite(v) and v < {LAST} then (extract(epoch from v) * 1000000)::int8 end"
    if pa.types.is_integer(kind):
        return "v::text::numeric"
    if pa.types.is_binary(kind):
        return "encode(v, 'hex')"
    return "v" if pa.types.is_boolean(kind) else "format('%s', v)"


def snapshot(database: Database, like: Batch) -> list[Batch]:
    with Snapshot(database.dsn, "flow") as session:
        return list(session.read(like.table, f"{select(like.table)} ORDER BY id", position=1, read_at=1))


def compare(where: str, batch: Batch, truth: list[tuple[str | None, Any]]) -> None:
    odd = batch.odd.get("v")
    texts = dict(zip(odd.rows.to_pylist(), odd.texts.to_pylist(), strict=True)) if odd is not None else {}
    found = plainly(batch.rows.column("v"))
    assert len(found) == len(truth), where
    for row, ((text, value), got) in enumerate(zip(truth, found, strict=True)):
        if text is None:
            assert got is None and row not in texts, (where, row)
        elif value is None:
            assert got is None and texts.get(row) == text, (where, text)
        else:
            assert got == value and row not in texts, (where, text, got)


def plainly(values: pa.Array) -> list[Any]:
    """Values as `measure` gives them."""
    kind = values.type
    if pa.types.is_floating(kind):
        width = kind.bit_width
        bits = values.view(pa.uint32() if width == 32 else pa.uint64()).to_pylist()
        return [None if b is None else f"{b:0{width // 4}x}" for b in bits]
    if pa.types.is_date(kind):
        return list(values.cast(pa.int32()).to_pylist())
    if pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        return list(values.view(pa.int64()).to_pylist())
    if pa.types.is_binary(kind):
        return [None if v is None else v.hex() for v in values.to_pylist()]
    if pa.types.is_integer(kind):
        return [None if v is None else Decimal(v) for v in values.to_pylist()]
    return list(values.to_pylist())
