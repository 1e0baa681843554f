"""The re-select: rows read again by key from the server, decoded like the log, never older than the changes that ask for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, LiteralString, NamedTuple

import numpy as np
import psycopg
import pyarrow as pa
from psycopg.errors import InsufficientPrivilege, InvalidSchemaName, UndefinedTable
from psycopg.rows import tuple_row
from psycopg.sql import SQL, Composable, Composed, Identifier, Literal

from penstock.core.batch import Batch, Odd
from penstock.core.schema import Column
from penstock.errors import DecodeFailed, SourceFailed, SourceRights
from penstock.sources.postgres import columns as texts
from penstock.sources.postgres import copytext
from penstock.sources.postgres.control import connect
from penstock.sources.postgres.load.visibility import contains
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.server_errors import translate_psycopg
from penstock.sources.postgres.toast.keys import array_literal

PATIENCE = 20.0
"""Seconds that a transaction may be in the log and not yet seen by others; synchronous replication makes that long."""

_NUMBER = Column("n", pa.int64(), "bigint")
_BEGIN = SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE {only} {table} IN ACCESS SHARE MODE")
_NAME: LiteralString = """
SELECT n.nspname, c.relname, c.relkind::text, pg_catalog.pg_current_snapshot()::text
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""
# The operator by which the key's own index compares: with an empty search path an extension's `=` is not found by its name.
_COLUMNS: LiteralString = """
SELECT a.attname, a.atttypid::int8, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod), e.nspname, e.oprname
  FROM pg_catalog.pg_attribute a
  LEFT JOIN LATERAL (
       SELECT n.nspname, o.oprname
         FROM pg_catalog.pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int2[], i.indclass::oid[]) AS k(attnum, opclass)
         JOIN pg_catalog.pg_opclass c ON c.oid = k.opclass
         JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
         JOIN pg_catalog.pg_amop f ON f.amopfamily = c.opcfamily AND f.amopstrategy = 3
                                  AND f.amoplefttype = c.opcintype AND f.amoprighttype = c.opcintype
         JOIN pg_catalog.pg_operator o ON o.oid = f.amopopr
         JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
        WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND k.attnum = a.attnum
        ORDER BY i.indisreplident DESC, i.indisprimary DESC, i.indexrelid LIMIT 1) e ON true
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""


class _Place(NamedTuple):
    """What a table is called now; a partitioned one is read with its partitions, any other without its heirs."""

    schema: str
    name: str
    kind: str

    @property
    def only(self) -> SQL:
        return SQL("" if self.kind == "p" else "ONLY")

    @property
    def table(self) -> Identifier:
        return Identifier(self.schema, self.name)


class _Column(NamedTuple):
    """A column as it is now; `schema` and `operator` say how a unique index compares it."""

    name: str
    type: int
    typmod: int
    type_name: str
    schema: str | None
    operator: str | None


class Fetched(NamedTuple):
    """What the server had: per value which of the asked keys it belongs to, and per column the values."""

    asked: Any
    values: dict[int, tuple[pa.Array, Odd | None]]
    size: int
    """Bytes that arrived."""


class _Ambiguous(Exception):
    """More than one row has a key."""


class Reselect:
    """One connection, opened on use and kept; errors are ours."""

    def __init__(self, dsn: str, flow: str, iam: RdsIam | None = None) -> None:
        self._dsn, self._flow, self._iam = dsn, flow, iam
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._places: dict[int, _Place] = {}

    def fetch(self, batch: Batch, rows: Any, columns: Sequence[int]) -> Fetched | None:
        """The columns of the rows' keys as they are now; None when the table cannot give them any more.

        A key that is not there is left out. The snapshot contains the transactions of all the rows.
        """
        kept = self._connection is not None and not self._connection.closed
        try:
            return self._patiently(batch, rows, columns)
        except psycopg.Error as error:
            if kept and isinstance(error, psycopg.OperationalError) and self._connection is not None and self._connection.closed:
                # The server was restarted, or has ended an idle session, since the last time.
                return self._again(batch, rows, columns)
            raise self._translated(error, batch) from error

    def close(self) -> None:
        """Gives the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _again(self, batch: Batch, rows: Any, columns: Sequence[int]) -> Fetched | None:
        try:
            return self._patiently(batch, rows, columns)
        except psycopg.Error as error:
            raise self._translated(error, batch) from error

    def _translated(self, error: psycopg.Error, batch: Batch) -> Exception:
        if not isinstance(error, InsufficientPrivilege):
            return translate_psycopg(error, self._dsn)
        table = Identifier(batch.table.schema, batch.table.name).as_string(None)
        return SourceRights(
            f"The role may not read {batch.table.qualified}, which `toast_fetch` needs.",
            remedy=f"GRANT SELECT ON {table} and USAGE on its schema to the dsn's role, or set `toast_fetch` to off or cache.",
            table=batch.table.qualified,
        )

    def _patiently(self, batch: Batch, rows: Any, columns: Sequence[int]) -> Fetched | None:
        deadline = time.monotonic() + PATIENCE
        transactions = np.unique(batch.xid.to_numpy()[rows])
        while True:
            done, fetched = self._once(batch, rows, columns, transactions)
            if done:
                return fetched
            if time.monotonic() > deadline:
                raise SourceFailed(
                    f"A change of {batch.table.qualified} is in the log, but the server does not show it to others yet.",
                    remedy="A commit that waits for a synchronous standby is seen only afterwards: check the standbys.",
                )
            time.sleep(0.01)

    def _once(self, batch: Batch, rows: Any, columns: Sequence[int], transactions: Any) -> tuple[bool, Fetched | None]:
        """Whether the answer is final, and the answer."""
        connection = self._open()
        try:
            place, snapshot = self._begin(connection, int(batch.table.identity))
            if place is None:
                return True, None
            if not all_visible(transactions, snapshot):
                return False, None
            return True, self._read(connection, place, batch, rows, columns)
        except _Ambiguous:
            return True, None
        except psycopg.Error as error:
            if _is_final(error):
                return True, None
            raise
        finally:
            if not connection.closed:
                connection.rollback()

    def _begin(self, connection: psycopg.Connection[tuple[Any, ...]], oid: int) -> tuple[_Place | None, str]:
        """A transaction that holds the table, whatever it is called now, and its snapshot; None when the table is gone.

        The lock comes first: what the catalogue says under it stays true until the rows are read.
        """
        place = self._places.get(oid) or self._find(connection, oid)[0]
        for _ in range(3):
            if place is None:
                break
            with suppress(UndefinedTable, InvalidSchemaName):
                connection.execute(_BEGIN.format(only=place.only, table=place.table))
                now, snapshot = self._find(connection, oid)
                if now == place:
                    return place, snapshot
            connection.rollback()
            place, _ = self._find(connection, oid)
        return None, ""

    def _find(self, connection: psycopg.Connection[tuple[Any, ...]], oid: int) -> tuple[_Place | None, str]:
        row = connection.execute(_NAME, (oid,)).fetchone()
        self._places.pop(oid, None)
        if row is None:
            return None, ""
        self._places[oid] = _Place(*row[:3])
        return self._places[oid], str(row[3])

    def _read(
        self, connection: psycopg.Connection[tuple[Any, ...]], place: _Place, batch: Batch, rows: Any, columns: Sequence[int]
    ) -> Fetched | None:
        assert batch.handle is not None
        oid = int(batch.table.identity)
        now = {row[0]: _Column(*row) for row in connection.execute(_COLUMNS, (oid,)).fetchall()}
        then = batch.handle.detail["relation"][4]
        key = [now.get(name) for name in batch.table.key]
        # A column that has another type now, or is gone, cannot be read as this version of the table.
        columns = [i for i in columns if then[i][0] in now and list(now[then[i][0]][1:3]) == list(then[i][1:3])]
        if not columns or any(k is None or k.operator is None for k in key):
            return None
        wanted = [SQL("t.{}").format(Identifier(then[i][0])) for i in columns]
        query = _query(place, [k for k in key if k is not None], batch, rows, wanted)
        with connection.cursor() as cursor, cursor.copy(query) as copy:
            lines = list(copy)
        return _decoded(lines, batch, columns)

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None or self._connection.closed:
            # BEGIN is ours: psycopg's own would be one more round trip.
            self._connection = connect(self._dsn, self._flow, self._iam, tuple_row)
        return self._connection


def _query(place: _Place, key: Sequence[_Column], batch: Batch, rows: Any, wanted: Sequence[Composable]) -> Composed:
    assert batch.handle is not None
    places = pa.array(rows)
    arrays = [SQL("{}::text[]").format(Literal(array_literal(k.take(places)))) for k in batch.handle.keys]
    names = [Identifier(f"k{i}") for i in range(len(key))]
    same = [
        SQL("t.{} OPERATOR({}.{}) k.{}::{}").format(
            Identifier(k.name), Identifier(str(k.schema)), SQL(str(k.operator)), name, SQL(k.type_name)
        )
        for k, name in zip(key, names, strict=True)
    ]  # fmt: skip
    return SQL(
        "COPY (SELECT k.n, {wanted} FROM unnest({arrays}) WITH ORDINALITY AS k({names}, n) JOIN {only} {table} AS t ON {same})"
        " TO STDOUT"
    ).format(
        wanted=SQL(", ").join(wanted),
        arrays=SQL(", ").join(arrays),
        names=SQL(", ").join(names),
        only=place.only,
        table=place.table,
        same=SQL(" AND ").join(same),
    )


def _decoded(lines: list[Any], batch: Batch, columns: Sequence[int]) -> Fetched:
    """COPY's rows through the decoder's own columns; the first column is the number of the asked key."""
    b = np.frombuffer(bytearray().join(lines), np.uint8)
    shape = (len(columns) + 1, len(lines))
    kind, offset, length = np.empty(shape, np.uint8), np.empty(shape, np.int64), np.empty(shape, np.int64)
    if copytext.lines(b, kind, offset, length):
        raise DecodeFailed(f"rows of {batch.table.qualified} that were read again do not have the form that was asked for")
    asked = texts.build(b, kind[0], offset[0], length[0], _NUMBER)[0].to_numpy()
    values = {}
    for place, i in enumerate(columns, 1):
        values[i] = texts.build(b, kind[place], offset[place], length[place], batch.table.columns[i])
    once = np.bincount(asked)[asked] == 1 if len(asked) else np.zeros(0, np.bool_)
    if not once.all():
        # Nothing keeps the key unique any more: whose value it is cannot be said.
        raise _Ambiguous
    return Fetched(asked - 1, values, len(b))


def _is_final(error: psycopg.Error) -> bool:
    """Whether asking again could give nothing else: the key is no value of its type any more (an enum's label was renamed),
    or the rows are larger than the server can hand over."""
    return (error.sqlstate or "")[:2] in ("22", "23", "54")


def all_visible(transactions: Any, snapshot: str) -> bool:
    """Whether a snapshot, as pg_current_snapshot() writes it, contains the transactions, of which the lower 32 bits are given."""
    return bool(contains(snapshot, transactions).all())
