"""Rows on their way into a statement: as array parameters when they are few, copied to a temporary table when they are many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa

from penstock.destinations.postgres.cells import HEADER, MONEY, TRAILER, Cells, Wire, array_parameter, cells, copy_rows, wire_of
from penstock.destinations.postgres.session import Connection, Packed, execute
from penstock.destinations.sql import quoted

FEW_BYTES: Final = 256 << 10
"""Up to here an array parameter is quicker than a temporary table (README)."""
_STAGED: Final = "pg_temp.penstock_staged"
# Wire types by the name that the server's catalogue has for them: what travels as such needs no cast.
_NAMES: Final[Mapping[str, str]] = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real", "float8": "double precision",
    "time": "time without time zone", "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
}  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    """How a column travels, and what the statement makes of it."""

    wire: Wire
    expression: str


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
        plans = [_plan(number, field.type, types[number]) for number, field in enumerate(rows.schema)]
        packed = [cells(_one(values), plan.wire) for values, plan in zip(rows.columns, plans, strict=True)]
        names = ", ".join(quoted(column) for column in rows.column_names)
        chosen = ", ".join(plan.expression for plan in plans)
        if rows.nbytes <= FEW_BYTES or self._pipeline is not None:
            arrays = ", ".join(f"${number}::{plan.wire[0]}[]" for number, plan in enumerate(plans, 1))
            source = f"unnest({arrays}) AS u ({', '.join(f'c{number}' for number in range(len(plans)))})"
            values = [Packed(array_parameter(column, plan.wire)) for column, plan in zip(packed, plans, strict=True)]
            return [self.run(f"WITH {name} ({names}) AS (SELECT {chosen} FROM {source}) {sql}", values) for sql in statements]
        with self._copied(plans, packed):
            return [self.run(f"WITH {name} ({names}) AS (SELECT {chosen} FROM {_STAGED} AS u) {sql}") for sql in statements]

    @contextmanager
    def _copied(self, plans: Sequence[_Plan], packed: Sequence[Cells]) -> Iterator[None]:
        columns = ", ".join(f"c{number} {plan.wire[0]}" for number, plan in enumerate(plans))
        self.run(f"CREATE TEMP TABLE penstock_staged ({columns}) ON COMMIT DROP")
        with self._connection.cursor().copy(f"COPY {_STAGED} FROM STDIN (FORMAT BINARY)".encode()) as copy:
            copy.write(HEADER)
            copy.write(copy_rows(packed))
            copy.write(TRAILER)
        yield
        self.run(f"DROP TABLE {_STAGED}")


def _plan(number: int, kind: pa.DataType, target: str) -> _Plan:
    wire = wire_of(kind, money=target == "money")
    own = target == _NAMES.get(wire[0], wire[0]) or wire == MONEY
    return _Plan(wire, f"u.c{number}" if own else f"u.c{number}::{target}")


def _one(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.array([], values.type)])
