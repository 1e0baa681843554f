"""Rows of a backfill that a streamed change has touched since they were read: left out, or brought up to date by that change.

A row whose changes tell all of it is left out: the destination has it from the stream. One whose changes leave out a column, as
an unchanged big value, is folded with them, so that it is whole even where the destination has never had it. What cannot be
folded is read from the source once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Op
from penstock.core.schema import TableSchema
from penstock.destinations.folding.codes import key_codes
from penstock.destinations.folding.fold import fold
from penstock.errors import DecodeFailed

MOST_BYTES = 64 << 20
"""How much of the changes is kept for folding; rows beyond are read again instead."""


class Touched:
    """What changes have done to one table, in one lane's bucket, that a chunk's snapshot does not show."""

    def __init__(self) -> None:
        self._later: list[Batch] = []
        self._partial: list[Any] = []
        self._met: list[Any] = []
        self._resolved: list[Any] = []
        self._emptied = False
        self._bytes = 0

    def see(self, batch: Batch) -> None:
        """Takes in changes, in log order; they come with handles."""
        truncates = pc.equal(batch.op, pa.scalar(int(Op.TRUNCATE), pa.uint8()))
        if pc.any(truncates).as_py():
            self._emptied = True
            batch = batch.filter(pc.invert(truncates))
        if not len(batch) or not batch.table.key:
            return
        partial = np.zeros(len(batch), np.bool_)
        for flags in batch.unchanged:
            if flags is not None:
                partial |= flags.to_numpy(zero_copy_only=False)
        changed = pc.is_in(batch.op, value_set=pa.array([int(Op.UPDATE), int(Op.ENTER)], pa.uint8()))
        partial &= changed.to_numpy(zero_copy_only=False)
        self._bytes += batch.nbytes
        self._later.append(batch)
        self._partial.append(partial)
        self._met.append(np.zeros(len(batch), np.bool_))
        self._resolved.append(np.zeros(len(batch), np.bool_))

    def brought_up(self, batch: Batch, position: int) -> Sequence[Batch]:
        """The rows as they are at the position: those that no change has touched, and those that changes complete."""
        if self._emptied:
            return ()
        if not self._later or not batch.table.key:
            return (batch,)
        codes, _ = key_codes(_joint(batch, [(b.rows, b.table) for b in self._later]))
        own, theirs = codes[: len(batch)], codes[len(batch) :]
        for met, mask in zip(self._met, self._parts(np.isin(theirs, own)), strict=True):
            met |= mask
        touched = np.isin(own, theirs)
        if not touched.any():
            return (batch,)
        parts = [batch.filter(pa.array(~touched))]
        partial = np.isin(own, theirs[np.concatenate(self._partial)])
        folded = self._fold(batch.filter(pa.array(partial)), np.isin(theirs, own[partial]), position) if partial.any() else None
        if folded is not None:
            parts.append(folded)
        return parts

    def unresolved(self, left_by: Callable[[Batch], Any]) -> list[pa.RecordBatch]:
        """The keys, as the source's texts, of rows whose changes leave out a column, and that no chunk has completed.

        Such are rows of the chunks, and rows that have come to their key from another one for which `left_by` is true: it is
        given changes and says so of each. Whatever else was changed meanwhile is no matter of these chunks; were it asked for,
        a table that is changed all the time would be asked for without end.
        """
        found = []
        for batch, partial, met, resolved in zip(self._later, self._partial, self._met, self._resolved, strict=True):
            open_ = partial & ~resolved
            came = open_ & ~met & (batch.op.to_numpy(zero_copy_only=False) == Op.ENTER)
            if came.any():
                came[came] = left_by(batch.filter(pa.array(came)))
            left = pa.array((open_ & met) | came)
            if pc.any(left).as_py() and batch.handle is not None:
                texts = [key.filter(left) for key in batch.handle.keys]
                found.append(pa.RecordBatch.from_arrays(texts, names=list(batch.table.key)))
        return found

    def _parts(self, mask: Any) -> list[Any]:
        """What is said of all changes, by batch."""
        return np.split(mask, np.cumsum([len(b) for b in self._later])[:-1])

    def _fold(self, base: Batch, wanted: Any, position: int) -> Batch | None:
        """The rows with all their changes; None when these cannot be folded, and are read again."""
        masks = self._parts(wanted)
        changes = [b.filter(pa.array(m)) for b, m in zip(self._later, masks, strict=True) if m.any()]
        # The fold knows values only as their columns hold them, and one version of a table.
        odd = any(b.odd or b.before_odd for b in (base, *changes))
        other = any(b.table.columns != base.table.columns for b in changes)
        if odd or other or self._bytes > MOST_BYTES:
            return None
        folded = fold([_under(base.table, b) for b in (base, *changes)])
        if folded.patches is not None or folded.departures is not None:
            return None
        for resolved, mask in zip(self._resolved, masks, strict=True):
            resolved |= mask
        return _snapshot(base, folded.upserts.combine_chunks(), position)


def among(changes: Batch, rows: Batch) -> Any:
    """Of each change whether the key that it has left is one of the rows'."""
    assert changes.before is not None
    codes, _ = key_codes(_joint(rows, [(changes.before, changes.table)]))
    return np.isin(codes[len(rows) :], codes[: len(rows)])


def _joint(batch: Batch, others: Sequence[tuple[pa.RecordBatch, TableSchema]]) -> list[pa.Array]:
    """The key columns of the rows, followed by those of all the others."""
    joint = []
    key = batch.table.key
    for place, index in enumerate(batch.table.key_indexes):
        column = batch.rows.column(index)
        try:
            # By name, and by place only where a column of the key has been renamed.
            theirs = [
                rows.column(t.key_indexes[t.key.index(key[place]) if key[place] in t.key else place]).cast(column.type)
                for rows, t in others
            ]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, IndexError) as error:
            raise DecodeFailed(
                f"the key of {batch.table.qualified} has changed its type while the table was read",
                remedy="Cancel the backfill and ask for it again.",
                table=batch.table.qualified,
            ) from error
        joint.append(pa.concat_arrays([column, *theirs]))
    return joint


def _under(table: TableSchema, batch: Batch) -> Batch:
    """The batch under another number of the same version of its table."""
    if batch.table == table:
        return batch
    rows = pa.RecordBatch.from_arrays(batch.rows.columns, schema=table.arrow)
    before = pa.RecordBatch.from_arrays(batch.before.columns, schema=table.arrow) if batch.before is not None else None
    about = (batch.op, batch.position, batch.ordinal, batch.xid, batch.committed_at, batch.unchanged, batch.image, before)
    return Batch(table, rows, *about)


def _snapshot(base: Batch, rows: pa.Table, position: int) -> Batch:
    count = rows.num_rows
    columns = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in rows.columns]
    first = int(base.ordinal[0].as_py())
    return Batch(
        table=base.table,
        rows=pa.RecordBatch.from_arrays(columns, schema=base.table.arrow),
        op=pa.array(np.full(count, int(Op.SNAPSHOT), np.uint8)),
        position=pa.array(np.full(count, position, np.int64)),
        ordinal=pa.array(np.arange(first, first + count)),
        xid=pa.array(np.zeros(count, np.int64)),
        committed_at=pa.array(np.full(count, base.committed_at[0].value, np.int64)).view(pa.timestamp("us", "UTC")),
        unchanged=(None,) * len(base.table.columns),
        image=pa.array(np.zeros(count, np.uint8)),
    )
