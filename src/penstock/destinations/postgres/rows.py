"""Rows on their way into a statement: as array parameters when they are few, copied to a temporary table when they are many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa

from penstock.destinations.postgres.cells import (
    HEADER,
    TEXT,
    TRAILER,
    UUID,
    Cells,
    Wire,
    are_uuids,
    array_parameter,
    cells,
    copy_rows,
    wire_of,
)
from penstock.destinations.postgres.session import Connection, Packed, execute
from penstock.destinations.sql import quoted

FEW_BYTES: Final = 256 << 10
"""Up to here an array parameter is quicker than a temporary table (README)."""
_PART_BYTES: Final = 4 << 20
_STAGED: Final = "pg_temp.penstock_staged"
# Wire types by the name that the server's catalogue has for them: what travels as such needs no cast.
_NAMES: Final[Mapping[str, str]] = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real", "float8": "double precision",
    "varchar": "character varying", "time": "time without time zone",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
}  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    """How a column travels, and what the statement makes of it."""

    wire: Wire
    expression: str
    is_own: bool
    """Whether it travels as what it is to be."""


class Transaction:
    """The open transaction of an epoch; in a pipeline its statements go out without waiting for each other."""

    def __init__(self, connection: Connection, pipeline: psycopg.Pipeline | None = None) -> None:
        self._connection, self._pipeline = connection, pipeline

    def run(self, sql: str, values: Sequence[Any] | None = None) -> psycopg.Cursor[tuple[Any, ...]]:
        """Runs a statement; in a pipeline its outcome comes later."""
        return execute(self._connection, sql, values)

    def count(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> int:
        """How many rows a statement has written, once it has run."""
        if self._pipeline is not None:
            self._pipeline.sync()
        return cursor.rowcount

    def feed(
        self, name: str, rows: pa.Table, types: Sequence[str], statements: Sequence[str]
    ) -> list[psycopg.Cursor[tuple[Any, ...]]]:
        """Runs statements in which `name` is a table of the rows, with the rows' own column names and the target's types."""
        plans = _plans(rows, types)
        names = ", ".join(quoted(column) for column in rows.column_names)
        chosen = ", ".join(plan.expression for plan in plans)
        if rows.nbytes <= FEW_BYTES or self._pipeline is not None:
            arrays = ", ".join(f"${number}::{plan.wire[0]}[]" for number, plan in enumerate(plans, 1))
            source = f"unnest({arrays}) AS u ({', '.join(f'c{number}' for number in range(len(plans)))})"
            packed = zip(_packed(rows, plans), plans, strict=True)
            values = [Packed(array_parameter(column, plan.wire)) for column, plan in packed]
            return [self.run(f"WITH {name} ({names}) AS (SELECT {chosen} FROM {source}) {sql}", values) for sql in statements]
        columns = ", ".join(f"c{number} {plan.wire[0]}" for number, plan in enumerate(plans))
        self.run(f"CREATE TEMP TABLE penstock_staged ({columns}) ON COMMIT DROP")
        self._copy(_STAGED, rows, plans)
        done = [self.run(f"WITH {name} ({names}) AS (SELECT {chosen} FROM {_STAGED} AS u) {sql}") for sql in statements]
        self.run(f"DROP TABLE {_STAGED}")
        return done

    def pour(self, target: str, rows: pa.Table, types: Sequence[str]) -> bool:
        """Copies new rows straight into a table; false, with nothing done, when that cannot be: a value travels as text, a key
        is there after all, or the table does not take a COPY."""
        plans = _plans(rows, types)
        if self._pipeline is not None or not all(plan.is_own for plan in plans):
            return False
        names = ", ".join(quoted(column) for column in rows.column_names)
        self.run("SAVEPOINT penstock_pour")
        try:
            self._copy(f"{target} ({names})", rows, plans)
        except (psycopg.errors.UniqueViolation, psycopg.errors.FeatureNotSupported):
            self.run("ROLLBACK TO SAVEPOINT penstock_pour")
            return False
        self.run("RELEASE SAVEPOINT penstock_pour")
        return True

    def _copy(self, target: str, rows: pa.Table, plans: Sequence[_Plan]) -> None:
        with self._connection.cursor().copy(f"COPY {target} FROM STDIN (FORMAT BINARY)".encode()) as copy:
            copy.write(HEADER)
            for part in _parts(rows):
                copy.write(copy_rows(_packed(part, plans)))
            copy.write(TRAILER)


def _plans(rows: pa.Table, types: Sequence[str]) -> list[_Plan]:
    """How each column travels; a UUID in an unusual form goes as text, which the server reads."""
    plans = []
    for number, (values, target) in enumerate(zip(rows.columns, types, strict=True)):
        wire = wire_of(values.type, target)
        if wire == UUID and not are_uuids(values):
            wire = TEXT
        own = target == _NAMES.get(wire[0], wire[0])
        plans.append(_Plan(wire, f"u.c{number}" if own else f"u.c{number}::{target}", own))
    return plans


def _packed(rows: pa.Table, plans: Sequence[_Plan]) -> list[Cells]:
    return [cells(_one(values), plan.wire) for values, plan in zip(rows.columns, plans, strict=True)]


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in parts of some megabytes, so that their binary form never stands in memory as a whole."""
    step = max(1, rows.num_rows * _PART_BYTES // max(1, rows.nbytes))
    for begin in range(0, rows.num_rows, step):
        yield rows.slice(begin, step)


def _one(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.array([], values.type)])
