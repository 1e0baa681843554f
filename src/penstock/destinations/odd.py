"""Odd values that a destination holds although Arrow does not know them, put into the column as it takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Odd

Meanings = Callable[[pa.Array, pa.DataType], tuple[pa.Array, pa.Array]]
"""For the texts of a column and its type: those words that the destination holds, and the value in Arrow's form of each."""


def held(batch: Batch, meanings: Meanings) -> Batch:
    """The batch with every odd value in its place that the destination holds; what is left is odd there too."""
    if not batch.odd and not batch.before_odd:
        return batch
    rows, odd = _held(batch.rows, batch.odd, meanings)
    before, before_odd = (None, {}) if batch.before is None else _held(batch.before, batch.before_odd, meanings)
    return replace(batch, rows=rows, odd=odd, before=before, before_odd=before_odd)


def _held(rows: pa.RecordBatch, odd: Mapping[str, Odd], meanings: Meanings) -> tuple[pa.RecordBatch, dict[str, Odd]]:
    columns, left = list(rows.columns), {}
    for i, field in enumerate(rows.schema):
        found = odd.get(field.name)
        if found is None or not len(found.rows):
            continue
        words, values = meanings(found.texts, field.type)
        known = pc.is_in(found.texts, value_set=words)
        if pc.any(known).as_py():
            columns[i] = _put(columns[i], found.rows.filter(known), values.take(pc.index_in(found.texts.filter(known), words)))
        if not pc.all(known).as_py():
            rest = pc.invert(known)
            left[field.name] = Odd(found.rows.filter(rest), found.texts.filter(rest))
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema), left


def _put(column: pa.Array, rows: pa.Array, values: pa.Array) -> pa.Array:
    mask = np.zeros(len(column), np.bool_)
    mask[rows.to_numpy()] = True
    return pc.replace_with_mask(column, pa.array(mask), values)
