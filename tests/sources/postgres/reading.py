"""One table read twice, from the stream and as a snapshot, in a database whose settings are against us."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from penstock.core.batch import Batch
from penstock.sources.postgres.snapshot import Snapshot, select
from tests.conftest import Database
from tests.sources.postgres.captured import Captured

FACTS = Path(__file__).parents[4] / "shared" / "facts" / "pg_type_cases.jsonl"
NO_FACTS = not FACTS.exists() and "CI" not in os.environ
"""The table of cases stands beside the checkout, not in it."""

_BY_DATABASE = ("datestyle = 'German, DMY'", "extra_float_digits = -15", "intervalstyle = iso_8601")
_BY_ROLE = ("timezone = 'Asia/Kathmandu'", "bytea_output = escape", "intervalstyle = sql_standard", "search_path = pg_temp")
_MONEY = ("de_DE.utf8", "de_DE.UTF-8", "en_IN.utf8", "ja_JP.utf8")


def make_hostile(database: Database) -> None:
    """Settings of database and role that change how a careless session sees values, or loses them."""
    for setting in _BY_DATABASE:
        database.execute(f"alter database {database.name} set {setting}")
    for setting in _BY_ROLE:
        database.execute(f"alter role postgres in database {database.name} set {setting}")
    for locale in _MONEY:
        with contextlib.suppress(psycopg.Error):
            database.execute(f"alter database {database.name} set lc_monetary = '{locale}'")
            return


def plain(database: Database) -> psycopg.Connection[tuple[Any, ...]]:
    """A session that reads and writes values as if nobody had changed a setting."""
    connection = database.connect()
    for setting in ("datestyle = ISO", "timezone = UTC", "intervalstyle = postgres", "search_path = public"):
        connection.execute(f"set {setting}".encode())
    return connection


def read_both(database: Database, home: Path, table: str, *statements: str, only: bool = True) -> tuple[Batch, Batch]:
    """What the statements do to the table as the stream has it, and the table as a snapshot has it afterwards."""
    with Captured(database, home).running() as captured:
        with plain(database) as connection:
            for statement in statements:
                connection.execute(statement.encode())
        captured.drain()
    (streamed,) = [b for b in captured.batches() if b.table.name == table]
    return streamed, read_snapshot(database, streamed, only=only)


def read_snapshot(database: Database, like: Batch, *, only: bool = True) -> Batch:
    """The table as a snapshot has it, ordered by its first column."""
    query = f"{select(like.table, only=only)} ORDER BY 1"
    with Snapshot(database.dsn, "flow") as snapshot:
        (found,) = snapshot.read(like.table, query, position=7, read_at=1)
    return found


def odd_texts(batch: Batch) -> dict[str, list[tuple[int, str]]]:
    """Every odd cell as row and text."""
    return {name: list(zip(o.rows.to_pylist(), o.texts.to_pylist(), strict=True)) for name, o in batch.odd.items()}


def assert_same(one: Batch, other: Batch) -> None:
    """The same values, bit for bit, and the same odd ones."""
    for column, a, b in zip(one.table.columns, one.rows.columns, other.rows.columns, strict=True):
        assert bits(a).equals(bits(b)), column
    assert odd_texts(one) == odd_texts(other)


def bits(values: pa.Array) -> pa.Array:
    """Floats as their bits, so that NaN equals NaN and 0 is not -0."""
    if pa.types.is_floating(values.type):
        return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return values
