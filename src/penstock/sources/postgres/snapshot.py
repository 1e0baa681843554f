"""The snapshot: rows read with COPY, as batches that equal the stream's, value for value.

The session is pinned like the stream's, the server writes values with the same output functions, and the same kernels read
them. Rows arrive in the order in which the query gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from psycopg.sql import SQL, Identifier

from penstock.core.batch import Batch, Image, Op
from penstock.core.schema import TableSchema
from penstock.errors import ProtocolBroken
from penstock.sources.postgres import columns, copytext
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.wire import SESSION_OPTIONS, ReplicationConnection, raise_server_error

STEP_BYTES: Final = 8 << 20
_MOST_BYTES: Final = (2 << 30) - 1
"""No frame of the server is larger."""
_PAUSE: Final = 1.0

# A row that a policy hides would be missing without a word: with row_security off the server refuses the query instead.
_SESSION: Final = f"{SESSION_OPTIONS} -c row_security=off"


def select(table: TableSchema, *, only: bool = True, where: str = "") -> str:
    """The query for a table's rows with exactly the schema's columns; `only` false for a partitioned table.

    With `only` the rows of tables that inherit from it are left out, as the stream gives these under their own names.
    `where` is SQL.
    """
    names = SQL(", ").join(Identifier(column.name) for column in table.columns)
    origin = Identifier(table.schema, table.name)
    query = SQL("SELECT {} FROM {}{}").format(names, SQL("ONLY " if only else ""), origin).as_string(None)
    return f"{query} WHERE {where}" if where else query


class Snapshot:
    """One read-only transaction over a connection of its own; all that it reads is the state of one moment."""

    def __init__(self, dsn: str, flow: str, exported: str | None = None, iam: RdsIam | None = None) -> None:
        """`exported` names a snapshot that another session holds open; without one the moment is that of the first read."""
        self._connection = ReplicationConnection.connect(
            dsn, application_name=f"penstock {flow}", startup_options=_SESSION, iam=iam, replication=False
        )
        self._busy = False
        try:
            self._connection.query("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if exported is not None:
                quoted = exported.replace("'", "''")
                self._connection.query(f"SET TRANSACTION SNAPSHOT '{quoted}'")
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the transaction and the connection, also in the middle of a read."""
        if self._busy:
            self._connection.close()
        else:
            self._connection.end()

    def read(self, table: TableSchema, query: str, *, position: int, read_at: int) -> Iterator[Batch]:
        """The rows of the query, whose columns are the table's, in batches of some megabytes.

        Every row stands at `position`, numbered from 1 in the order in which it came; `read_at` (µs since 1970) is its time.
        """
        self._busy = True
        self._connection.start_copy(f"COPY ({query}) TO STDOUT")
        rows = _Rows(self._connection, table)
        ordinal = 0
        while not rows.ended:
            found = rows.step()
            if found is not None:
                yield _batch(table, found, position, ordinal, read_at)
                ordinal += found[0].shape[1]
        self._busy = False


Cells = tuple[Any, Any, Any, Any]
"""Kind, offset and length of every cell, a line per column, and the bytes they point into."""


class _Rows:
    """The raw stream of one COPY, located a buffer at a time."""

    def __init__(self, connection: ReplicationConnection, table: TableSchema) -> None:
        self._connection = connection
        self._table = table
        self._width = len(table.columns)
        self._buffer = bytearray(STEP_BYTES)
        self._fill = 0
        self._at = 0
        self.ended = False

    def step(self) -> Cells | None:
        """The rows of the next bytes; None when there are none. They are valid until the next call."""
        self._receive()
        array = np.frombuffer(self._buffer, np.uint8)
        # A row takes a frame's head, a byte between columns and one at its end.
        room = self._fill // (5 + max(1, self._width)) + 1
        cells = (max(1, self._width), room)
        kind, offset, length = np.empty(cells, np.uint8), np.empty(cells, np.int64), np.empty(cells, np.int64)
        count, reason = 0, copytext.OTHER
        while reason == copytext.OTHER and not self.ended:
            count, self._at, reason = copytext.split(array, self._at, self._fill, count, self._width, kind, offset, length)
            if reason == copytext.BROKEN:
                raise ProtocolBroken(f"the server sent a row of {self._table.qualified} that is not COPY's text")
            if reason == copytext.OTHER and not self._note():
                break
        return (kind[:, :count], offset[:, :count], length[:, :count], array) if count else None

    def _receive(self) -> None:
        """Fills the buffer, which grows for a row that is larger, until it is full or the stream ends."""
        rest = self._fill - self._at
        if rest == len(self._buffer):
            if rest >= _MOST_BYTES:
                raise ProtocolBroken(f"the server sent a row of {self._table.qualified} that never ends")
            self._buffer = self._buffer + bytearray(min(rest, _MOST_BYTES - rest))
        elif self._at:
            # A buffer that a view still points at cannot be resized, but it can be written.
            self._buffer[:rest] = self._buffer[self._at : self._fill]
        self._fill, self._at = rest, 0
        view = memoryview(self._buffer)
        while self._fill < len(view):
            count = self._connection.receive_into(view[self._fill :])
            self._fill += count
            if bytes(view[max(0, self._fill - 6) : self._fill]) in _READY:
                return
            if count == 0:
                self._connection.wait(_PAUSE)

    def _note(self) -> bool:
        """Takes the frame at the position, which is no row; false when it is not whole yet."""
        start = self._at
        limit = start + 1 + int.from_bytes(self._buffer[start + 1 : start + 5], "big")
        if limit > self._fill:
            return False
        kind, payload = bytes(self._buffer[start : start + 1]), bytes(self._buffer[start + 5 : limit])
        self._at = limit
        if kind == b"E":
            raise_server_error(payload, self._connection.where)
        if kind not in (b"c", b"C", b"Z", b"N", b"S"):
            raise ProtocolBroken(f"the server answered COPY with a message of kind {kind!r}")
        self.ended = kind == b"Z"
        return True


# ReadyForQuery inside the transaction, or after it failed: the last thing that the server sends.
_READY: Final = (b"Z\0\0\0\5T", b"Z\0\0\0\5E", b"Z\0\0\0\5I")


def _batch(table: TableSchema, cells: Cells, position: int, before: int, read_at: int) -> Batch:
    kind, offset, length, b = cells
    count = kind.shape[1]
    arrays, odd = columns.build_all(b, kind, offset, length, table.columns)
    return Batch(
        table=table,
        rows=pa.RecordBatch.from_arrays(arrays, schema=table.arrow) if arrays else columns.no_columns(count),
        op=pa.array(np.full(count, Op.SNAPSHOT, np.uint8)),
        position=pa.array(np.full(count, position, np.int64)),
        ordinal=pa.array(np.arange(before + 1, before + 1 + count)),
        xid=pa.array(np.zeros(count, np.int64)),
        committed_at=pa.array(np.full(count, read_at, np.int64)).view(pa.timestamp("us", "UTC")),
        unchanged=(None,) * len(table.columns),
        image=pa.array(np.full(count, Image.NONE, np.uint8)),
        odd=odd,
    )


def warm() -> None:
    """Loads or compiles the kernels."""
    copytext.warm()
    columns.warm()
