"""Odd values that DuckDB can hold after all: infinite dates and timestamps, and the end of the day as a time.

Arrow has no such values; DuckDB keeps them as numbers at the edge of the same representation, and takes them from Arrow as
they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Odd

_DAYS: Final = (1 << 31) - 1
_MICROSECONDS: Final = (1 << 63) - 1
_DAY: Final = 86_400_000_000


def held(batch: Batch) -> Batch:
    """The batch with every odd value in its place that DuckDB's type holds; what is left is odd here too."""
    if not batch.odd and not batch.before_odd:
        return batch
    rows, odd = _held(batch.rows, batch.odd)
    before, before_odd = (batch.before, {}) if batch.before is None else _held(batch.before, batch.before_odd)
    return replace(batch, rows=rows, odd=odd, before=before, before_odd=before_odd)


def _held(rows: pa.RecordBatch, odd: Mapping[str, Odd]) -> tuple[pa.RecordBatch, dict[str, Odd]]:
    columns, left = list(rows.columns), {}
    for i, field in enumerate(rows.schema):
        found = odd.get(field.name)
        if found is None:
            continue
        words, values = _edges(field.type)
        known = pc.is_in(found.texts, value_set=words)
        columns[i] = _put(columns[i], found.rows.filter(known), values.take(pc.index_in(found.texts.filter(known), words)))
        if not pc.all(known).as_py():
            rest = pc.invert(known)
            left[field.name] = Odd(found.rows.filter(rest), found.texts.filter(rest))
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema), left


def _edges(kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Texts, and the values of the type that DuckDB takes for them."""
    if pa.types.is_date32(kind):
        return pa.array(["infinity", "-infinity"]), pa.array([_DAYS, -_DAYS], pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(["infinity", "-infinity"]), pa.array([_MICROSECONDS, -_MICROSECONDS], pa.int64()).view(kind)
    if pa.types.is_time64(kind):
        return pa.array(["24:00:00"]), pa.array([_DAY], pa.int64()).view(kind)
    return pa.array([], pa.string()), pa.array([], kind)


def _put(column: pa.Array, rows: pa.Array, values: pa.Array) -> pa.Array:
    mask = np.zeros(len(column), np.bool_)
    mask[rows.to_numpy()] = True
    return pc.replace_with_mask(column, pa.array(mask), values)
