"""Odd values that PostgreSQL holds although Arrow does not know them: infinities, 24:00:00, NaN as a decimal, years past 294246.

Arrow counts days and microseconds from 1970, PostgreSQL from 2000, both in 32 or 64 bits. The sum of the two counts wraps around
at the edges, and the subtraction that `cells` does wraps back, so that every value of PostgreSQL's has a number in Arrow's
column and none is meant twice. NaN takes the lowest number of 128 bits, which no precision reaches.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Odd

NOT_A_NUMBER: Final = (0, -(1 << 63))
"""The lower and the upper 64 bits."""
_DAYS: Final = 10_957
_DAY: Final = 86_400_000_000
_MOMENT: Final = re.compile(r"(\d{5,6})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?")


def held(batch: Batch) -> Batch:
    """The batch with every odd value in its place that PostgreSQL's type holds; what is left is odd there too."""
    if not batch.odd and not batch.before_odd:
        return batch
    rows, odd = _held(batch.rows, batch.odd)
    before, before_odd = (batch.before, {}) if batch.before is None else _held(batch.before, batch.before_odd)
    return replace(batch, rows=rows, odd=odd, before=before, before_odd=before_odd)


def _held(rows: pa.RecordBatch, odd: Mapping[str, Odd]) -> tuple[pa.RecordBatch, dict[str, Odd]]:
    columns, left = list(rows.columns), {}
    for i, field in enumerate(rows.schema):
        found = odd.get(field.name)
        if found is None or not len(found.rows):
            continue
        words = pc.unique(found.texts)
        meant = [(word, value) for word in words.to_pylist() if (value := _value(word, field.type)) is not None]
        known = pc.is_in(found.texts, value_set=pa.array([word for word, _ in meant], pa.string()))
        if meant:
            values = _array([value for _, value in meant], field.type)
            places = pc.index_in(found.texts.filter(known), pa.array([word for word, _ in meant]))
            columns[i] = _put(columns[i], found.rows.filter(known), values.take(places))
        if not pc.all(known).as_py():
            rest = pc.invert(known)
            left[field.name] = Odd(found.rows.filter(rest), found.texts.filter(rest))
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema), left


def _value(text: str, kind: pa.DataType) -> int | None:
    """The number that stands for a text in a column of the type; None when PostgreSQL's type has no such value."""
    if pa.types.is_date32(kind):
        return _edge(text, 32, _DAYS)
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        edge = _edge(text, 64, _DAYS * _DAY)
        return _moment(text) if edge is None else edge
    if pa.types.is_time64(kind) and kind.unit == "us":
        return _DAY if text == "24:00:00" else None
    if pa.types.is_decimal128(kind):
        return NOT_A_NUMBER[1] << 64 if text == "NaN" else None
    return None


def _edge(text: str, bits: int, shift: int) -> int | None:
    number = {"infinity": (1 << bits - 1) - 1, "-infinity": -(1 << bits - 1)}.get(text)
    return None if number is None else _wrapped(number + shift, bits)


def _moment(text: str) -> int | None:
    """A moment of the last years that PostgreSQL knows, 400 years being always as long."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    cycles, short = divmod(year - 2000, 400)
    try:
        days = dt.date(2000 + short, month, day).toordinal() - dt.date(1970, 1, 1).toordinal() + cycles * 146_097
    except ValueError:
        return None
    micro = int((found[7] or "").ljust(6, "0"))
    total = days * _DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000 + micro
    # The last microsecond but one of the count from 2000; the last is infinity.
    return _wrapped(total, 64) if total - _DAYS * _DAY < (1 << 63) - 1 else None


def _wrapped(number: int, bits: int) -> int:
    return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def _array(numbers: list[int], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal128(kind):
        data = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
        return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(data)])
    return pa.array(numbers, pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)


def _put(column: pa.Array, rows: Any, values: pa.Array) -> pa.Array:
    mask = np.zeros(len(column), np.bool_)
    mask[rows.to_numpy()] = True
    return pc.replace_with_mask(column, pa.array(mask), values)
