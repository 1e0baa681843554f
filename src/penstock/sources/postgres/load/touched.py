"""What a stretch of the journal touches: keys of a table by transactions that a snapshot lacks, and where transactions commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.batch import Op
from penstock.errors import JournalCorrupt
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice, SliceFlag
from penstock.sources.chunks import Touched
from penstock.sources.postgres import columns
from penstock.sources.postgres.decoder import PostgresDecoder, steps
from penstock.sources.postgres.load import cells
from penstock.sources.postgres.load.visibility import Described


def touched(
    journal: SliceReader, slices: Sequence[Slice], schema: str, name: str, outside: str, inside: str | None
) -> Iterator[Touched]:
    """Keys, old and new, of the table's changes by transactions that `outside` lacks and `inside`, if given, has."""
    lacks, has = Described.parse(outside), Described.parse(inside) if inside is not None else None
    found = PostgresDecoder().keys(journal, slices, lambda table: (table.schema, table.name) == (schema, name))
    for change in found:
        wanted = ~lacks.contains(change.xids) if has is None else ~lacks.contains(change.xids) & has.contains(change.xids)
        if not wanted.any():
            continue
        emptied = change.ops == Op.TRUNCATE
        keyed = pa.array(wanted & ~emptied)
        names = list(change.table.key)
        count = int(wanted.sum())
        if names:
            texts = pa.Table.from_arrays([text.filter(keyed) for text in change.keys], names)
            (distinct,) = texts.group_by(names).aggregate([]).combine_chunks().to_batches() or [_none(names)]
            keys = distinct.select(names)
        else:
            keys = columns.no_columns(0)
        yield Touched(change.table, keys, count, bool((wanted & emptied).any()))


def first_outside(journal: SliceReader, slices: Sequence[Slice], described: str) -> int | None:
    """Where the first transaction of the slices commits that the snapshot lacks; rows are stepped over."""
    snapshot = Described.parse(described)
    lacking = [positions[~snapshot.contains(xids)] for xids, positions in _commits(journal, slices)]
    return min((int(found.min()) for found in lacking if len(found)), default=None)


def _commits(journal: SliceReader, slices: Sequence[Slice]) -> Iterator[tuple[Any, Any]]:
    """The transactions that commit in the slices, and where, in steps."""
    pieces = {s.xid: s.last for s in slices if s.flags & SliceFlag.PIECE}
    yield np.array(list(pieces), np.int64), np.array(list(pieces.values()), np.int64)
    for group in steps([s for s in slices if not s.flags & SliceFlag.PIECE]):
        b, starts = journal.read(group)
        for s, start in zip(group, starts, strict=True):
            xids, positions = np.empty((2, s.size // cells.SMALLEST_COMMIT + 1), np.int64)
            count = cells.find_commits(b, start, start + s.size, xids, positions)
            if count < 0:
                raise JournalCorrupt(f"journal segment {s.segment} holds bytes that are no frame", segment=s.segment)
            yield xids[:count], positions[:count]


def _none(names: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], pa.string()) for _ in names], list(names))
