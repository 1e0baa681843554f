"""Logical messages (`pg_logical_emit_message`) as changes of a table of their own.

A message in a transaction has that transaction's position and its place among the changes. One outside of any transaction is
delivered at once; its position is where its own record ends in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch
from penstock.errors import DecodeFailed
from penstock.journal.catalog import Entry
from penstock.sources.postgres import columns, scan
from penstock.sources.postgres.message_table import TABLE
from penstock.sources.postgres.walk import u32

ENTRY = Entry(0, 0, 0, 0, TABLE, {})
OWN_PREFIX = "penstock."
"""Messages that penstock itself writes; they are nobody's events."""


def batch(b: Any, rows: Any, recipe: Mapping[str, Any] | None = None) -> Batch:
    """The messages that the scan has found and the flow has asked for, as its `decoding` says."""
    n = rows.shape[1]
    offset, length, flags = np.empty((2, n), np.int64), np.empty((2, n), np.int64), np.empty(n, np.bool_)
    if _locate(b, rows[scan.NEW], rows[scan.LIMIT], offset, length, flags):
        raise DecodeFailed("the journal holds a logical message that is cut short")
    present = np.full(n, ord("t"), np.uint8)
    prefix = columns.texts(b, present, offset[0], length[0], pa.string())
    content = columns.texts(b, present, offset[1], length[1], pa.binary())
    position, ordinal = _numbers(rows[scan.POSITION]), _numbers(rows[scan.ORDINAL])
    found = Batch(
        table=TABLE,
        rows=pa.RecordBatch.from_arrays([position, ordinal, pa.array(flags), prefix, content], schema=TABLE.arrow),
        op=pa.array(rows[scan.OPERATION].astype(np.uint8)),
        position=position,
        ordinal=ordinal,
        xid=_numbers(rows[scan.XID]),
        committed_at=_numbers(rows[scan.COMMITTED_AT]).cast(pa.timestamp("us", "UTC")),
        unchanged=(None,) * len(TABLE.columns),
        image=pa.array(np.zeros(n, np.uint8)),
        before=None,
        odd={},
    )
    wanted = pc.invert(pc.starts_with(prefix, OWN_PREFIX))
    if recipe is not None:
        # Another flow's triggers may use the same prefix.
        told = pc.and_(pc.equal(prefix, recipe["ddl"]["prefix"]), pc.starts_with(content, recipe["ddl"]["head"]))
        wanted = pc.or_(told, wanted) if recipe["messages"] else told
    return found if pc.all(wanted).as_py() else found.filter(wanted)


def _numbers(values: Any) -> pa.Array:
    return pa.array(np.ascontiguousarray(values))


@numba.njit(cache=True, nogil=True)
def _locate(b, at, limit, offset, length, flags):  # type: ignore[no-untyped-def]
    """Byte and length of prefix and content; 0, or the number of a bad message, from 1."""
    for i in range(at.shape[0]):
        p, stop = at[i], limit[i]
        flags[i] = (b[p + 1] & 1) != 0
        q = p + 10
        offset[0, i] = q
        while q < stop and b[q] != 0:
            q += 1
        length[0, i] = q - offset[0, i]
        if q + 5 > stop:
            return i + 1
        offset[1, i] = q + 5
        length[1, i] = u32(b, q + 1)
        if q + 5 + length[1, i] > stop:
            return i + 1
    return 0


def warm() -> None:
    """Loads or compiles the kernel."""
    none = np.zeros(0, np.int64)
    _locate(np.zeros(1, np.uint8), none, none, np.zeros((2, 0), np.int64), np.zeros((2, 0), np.int64), np.zeros(0, np.bool_))
