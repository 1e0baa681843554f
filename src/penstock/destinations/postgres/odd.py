"""Odd values that PostgreSQL holds although Arrow does not know them: infinities, 24:00:00, NaN as a decimal, years past 294246.

Arrow counts days and microseconds from 1970, PostgreSQL from 2000, both in 32 or 64 bits. The sum of the two counts wraps around
at the edges, and the subtraction that `cells` does wraps back, so that every value of PostgreSQL's has a number in Arrow's
column and none is meant twice. NaN takes the lowest number of 128 bits, which no precision reaches.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

NOT_A_NUMBER: Final = (0, -(1 << 63))
"""The lower and the upper 64 bits."""
_DAYS: Final = 10_957
_DAY: Final = 86_400_000_000
_MOMENT: Final = re.compile(r"(\d{5,6})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?")


def meanings(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Words among the texts, and the numbers that stand for them in a column of the type."""
    known = [(word, number) for word in pc.unique(texts).to_pylist() if (number := _value(word, kind)) is not None]
    if not known:
        return pa.array([], pa.string()), pa.array([], kind)
    return pa.array([word for word, _ in known], pa.string()), _array([number for _, number in known], kind)


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
