"""Cells that are put into a batch after it was decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch, Odd


class Cells(NamedTuple):
    """New values for some rows of one column: row `rows[i]` gets value `sources[i]` of the parts one after the other.

    `odd` numbers the values, not the rows. Nothing is copied before the column is made: big values are worth it.
    """

    rows: Any
    parts: Sequence[pa.Array]
    sources: Any
    odd: Odd | None = None


def gathered(parts: Sequence[pa.Array], places: Any) -> pa.Array:
    """The values at those places of the parts one after the other."""
    found = pa.chunked_array(parts).take(pa.array(places))
    return found.chunk(0) if found.num_chunks == 1 else pa.concat_arrays(found.chunks)


def gaps(batch: Batch, index: int) -> Any:
    """The rows in which the column is unknown."""
    flags = batch.unchanged[index]
    return np.zeros(0, np.int64) if flags is None else np.flatnonzero(flags.to_numpy(zero_copy_only=False))


def count_gaps(batch: Batch) -> int:
    """How many cells of the batch are unknown."""
    return sum(len(gaps(batch, i)) for i in range(len(batch.unchanged)))


def put(batch: Batch, new: Mapping[int, Cells], *, read_later: bool) -> Batch:
    """The batch with new cells by column, which are no longer unknown; `read_later` marks them so."""
    if not new:
        return batch
    columns, unchanged, odd = list(batch.rows.columns), list(batch.unchanged), dict(batch.odd)
    later = list(batch.read_later) or [None] * len(columns)
    for index, cells in new.items():
        name = batch.table.columns[index].name
        columns[index] = _replaced(columns[index], cells)
        unchanged[index] = _flagged(unchanged[index], cells.rows, len(batch), False)
        later[index] = _flagged(later[index], cells.rows, len(batch), read_later)
        strange = _odd(odd.pop(name, None), cells)
        if strange is not None:
            odd[name] = strange
    rows = pa.RecordBatch.from_arrays(columns, schema=batch.rows.schema)
    marks = tuple(later) if any(flags is not None for flags in later) else ()
    return replace(batch, rows=rows, unchanged=tuple(unchanged), odd=odd, read_later=marks)


def _replaced(column: pa.Array, cells: Cells) -> pa.Array:
    places = np.arange(len(column))
    places[cells.rows] = len(column) + cells.sources
    return gathered([column, *cells.parts], places)


def _flagged(flags: pa.Array | None, rows: Any, count: int, value: bool) -> pa.Array | None:
    mask = np.zeros(count, np.bool_) if flags is None else flags.to_numpy(zero_copy_only=False).copy()
    mask[rows] = value
    return pa.array(mask) if mask.any() else None


def _odd(before: Odd | None, cells: Cells) -> Odd | None:
    parts: list[tuple[Any, pa.Array]] = []
    if before is not None:
        stays = ~np.isin(before.rows.to_numpy(), cells.rows)
        parts.append((before.rows.to_numpy()[stays], before.texts.filter(pa.array(stays))))
    if cells.odd is not None:
        numbers = cells.odd.rows.to_numpy()
        strange = np.isin(cells.sources, numbers)
        texts = cells.odd.texts.take(pa.array(np.searchsorted(numbers, cells.sources[strange])))
        parts.append((cells.rows[strange], texts))
    rows = np.concatenate([part[0] for part in parts]) if parts else np.zeros(0, np.int64)
    if not len(rows):
        return None
    order = np.argsort(rows, kind="stable")
    texts = pa.concat_arrays([part[1] for part in parts]).take(pa.array(order))
    return Odd(pa.array(rows[order], pa.int64()), texts)
