"""The binary forms in which a chunk's values come where all of its columns have one: half the work for the server and for us.

What they become equals what the same values become from the log's text. A table with a column of any other type, or with a key
whose text is not plain to see, is read as text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import numba
import numpy as np
import pyarrow as pa

from penstock.core.batch import Odd
from penstock.core.schema import Column, TableSchema
from penstock.errors import DecodeFailed
from penstock.sources.postgres import columns, types
from penstock.sources.postgres.scan import FNV, is_mine
from penstock.sources.postgres.tuples import PRIME
from penstock.sources.postgres.values import binary
from penstock.sources.postgres.values.words import big16, big32, big64

RAW: Final = "raw"
"""The value's own bytes."""
NUMBER: Final = "int8"
_TEXT: Final = 25
_FORMS: Final = {
    types.BOOL: "bool",
    types.BYTEA: RAW,
    types.INT2: "int2",
    types.INT4: "int4",
    types.INT8: NUMBER,
    types.OID: "int4",
    types.FLOAT4: "int4",
    types.FLOAT8: NUMBER,
    types.BPCHAR: RAW,
    types.VARCHAR: RAW,
    _TEXT: RAW,
    19: RAW,
    114: RAW,
    types.DATE: "date",
    types.TIME: "time",
    types.TIMESTAMP: "timestamp",
    types.TIMESTAMPTZ: "timestamp",
    types.NUMERIC: "numeric",
    2950: "uuid",
    3802: "jsonb",
}
_KEYS: Final = {RAW: 0, "int2": 2, "int4": 4, NUMBER: 8, "uuid": 16}

_DAYS: Final = 10957
"""From 1970 to 2000, from which the server counts."""
_MICROS: Final = _DAYS * 86_400_000_000
_DAY: Final = 86_400_000_000
_LAST: Final = 9_223_371_244_800_000_000
"""The moment, from 1970 on, at which the year 294247 begins; its end 64 bits do not reach."""
_DIGITS: Final = np.array(list(bytes(range(256)).hex().encode()), np.uint8).reshape(256, 2)


class Fields(NamedTuple):
    """Fields of some rows, a line per column, and the rows' numbers."""

    b: Any
    offset: Any
    length: Any
    numbers: Any


def unknown(described: Sequence[tuple[str, int, int]]) -> list[int]:
    """Types of which only the server's catalogue can say whether they are enums."""
    return sorted({oid for _, oid, _ in described if oid >= types.FIRST_CUSTOM})


def chosen(described: Sequence[tuple[str, int, int]], table: TableSchema, enums: Collection[int]) -> list[str] | None:
    """The form of each column, of those that the server describes; None when the table has to be read as text."""
    forms = []
    for (_, oid, typmod), column in zip(described, table.columns, strict=True):
        form = RAW if oid in enums else _FORMS.get(oid)
        expected = pa.string() if oid in enums else types.arrow_type(oid, typmod)
        if form is None or column.type != expected or (form == "numeric" and column.type == pa.string()):
            return None
        forms.append(form)
    plain = all(forms[i] in _KEYS and table.columns[i].type.id in _PLAIN_KEYS for i in table.key_indexes)
    return forms if forms and plain else None


_PLAIN_KEYS: Final = frozenset(t.id for t in (pa.int16(), pa.int32(), pa.int64(), pa.string()))


def build_all(found: Fields, forms: Sequence[str], wanted: Sequence[Column]) -> tuple[list[pa.Array], dict[str, Odd]]:
    """The arrays of all columns, and the odd values of those that have some."""
    arrays, odd = [], {}
    whole = bool(found.length.min() >= 0)
    for i, (form, column) in enumerate(zip(forms, wanted, strict=True)):
        given = found.b, found.offset[i], found.length[i]
        array, strange = _MAKERS[form](*given, column, None if whole else columns.bitmap(given[2] >= 0))
        arrays.append(array)
        if strange is not None:
            odd[column.name] = strange
    return arrays, odd


Made = tuple[pa.Array, Odd | None]


def _ints(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None) -> Made:
    width = column.type.bit_width
    kernel, whole = _WIDTHS[width]
    out = np.empty(len(offset), whole)
    _check(kernel(b, offset, length, out), column)
    if pa.types.is_floating(column.type):
        # The server may have any of many bit patterns for what its text calls NaN.
        floats = out.view(np.float32 if width == 32 else np.float64)
        floats[np.isnan(floats)] = np.nan
    return pa.Array.from_buffers(column.type, len(out), [valid, pa.py_buffer(out)]), None


_WIDTHS: Final[dict[int, Any]] = {
    16: (binary.small_ints, np.int16),
    32: (binary.ints, np.int32),
    64: (binary.big_ints, np.int64),
}


def _truths(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None) -> Made:
    out = np.zeros(-(-len(offset) // 8), np.uint8)
    _check(binary.truths(b, offset, length, out), column)
    return pa.Array.from_buffers(column.type, len(offset), [valid, pa.py_buffer(out)]), None


def _raw(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None, skip: int = 0) -> Made:
    size = int(binary.total(length, skip))
    _check(size < 0, column)
    if size > columns.MOST_BYTES:
        raise DecodeFailed(f"{size} bytes of one column stand in one step, more than one array holds")
    out, offsets = np.empty(size, np.uint8), np.empty(len(offset) + 1, np.int32)
    more = binary.gather(b, offset, length, skip, out, offsets)
    found = pa.Array.from_buffers(column.type, len(offset), [valid, pa.py_buffer(offsets), pa.py_buffer(out)])
    return columns.validated(found) if more else found, None


def _jsonb(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None) -> Made:
    # Its text, behind the number of its version.
    first = b[offset[length > 0]]
    _check(bool((first != 1).any()), column)
    return _raw(b, offset, length, column, valid, 1)


def _uuids(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None) -> Made:
    out, offsets = np.empty(36 * len(offset), np.uint8), np.empty(len(offset) + 1, np.int32)
    _check(binary.uuids(b, offset, length, out, offsets), column)
    return pa.Array.from_buffers(column.type, len(offset), [valid, pa.py_buffer(offsets), pa.py_buffer(out)]), None


def _numerics(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None) -> Made:
    out: Any = np.empty((len(offset), 2), np.int64)
    bad = np.empty(len(offset), np.bool_)
    _check(binary.decimals(b, offset, length, column.type.scale, out, bad), column)
    odd = None
    if bad.any():
        names = {0xC0: "NaN", 0xD0: "Infinity", 0xF0: "-Infinity"}
        rows = np.nonzero(bad)[0]
        odd = Odd(pa.array(rows, pa.int64()), pa.array([names[int(b[offset[i] + 4])] for i in rows], pa.string()))
        valid = columns.bitmap((length >= 0) & ~bad)
    return pa.Array.from_buffers(column.type, len(out), [valid, pa.py_buffer(out)]), odd


def _dates(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None) -> Made:
    out = np.empty(len(offset), np.int32)
    _check(binary.ints(b, offset, length, out), column)
    edges = np.iinfo(np.int32)
    endless = (out == edges.min) | (out == edges.max)
    texts = ["infinity" if value > 0 else "-infinity" for value in out[endless]]
    out += np.int32(_DAYS)
    return _with_odd(out, length, column, valid, endless, texts)


def _moments(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None) -> Made:
    out = np.empty(len(offset), np.int64)
    _check(binary.big_ints(b, offset, length, out), column)
    edges = np.iinfo(np.int64)
    bad = (out == edges.min) | (out >= _LAST - _MICROS)
    texts = [_moment_text(int(value), column.type.tz is not None) for value in out[bad]]
    out += np.int64(_MICROS)
    return _with_odd(out, length, column, valid, bad, texts)


def _moment_text(value: int, zoned: bool) -> str:
    """A timestamp that does not fit, as the server writes it."""
    if abs(value) >= np.iinfo(np.int64).max:
        return "infinity" if value > 0 else "-infinity"
    # The calendar repeats itself after 400 years, which are 146,097 days.
    cycles, rest = divmod(value, 146_097 * _DAY)
    moment = np.datetime64(946_684_800_000_000 + rest, "us").astype(object)
    text = f"{moment.year + 400 * cycles:04d}-{moment:%m-%d %H:%M:%S}"
    if moment.microsecond:
        text += f".{moment.microsecond:06d}".rstrip("0")
    return f"{text}+00" if zoned else text


def _times(b: Any, offset: Any, length: Any, column: Column, valid: pa.Buffer | None) -> Made:
    out = np.empty(len(offset), np.int64)
    _check(binary.big_ints(b, offset, length, out), column)
    bad = out == _DAY
    return _with_odd(out, length, column, valid, bad, ["24:00:00"] * int(bad.sum()))


def _with_odd(out: Any, length: Any, column: Column, valid: pa.Buffer | None, bad: Any, texts: list[str]) -> Made:
    odd = None
    if texts:
        out[bad] = 0
        odd = Odd(pa.array(np.nonzero(bad)[0], pa.int64()), pa.array(texts, pa.string()))
        valid = columns.bitmap((length >= 0) & ~bad)
    return pa.Array.from_buffers(column.type, len(out), [valid, pa.py_buffer(out)]), odd


def _check(wrong: int | bool, column: Column) -> None:
    if wrong:
        raise DecodeFailed(f"column {column.name} holds values that do not have its form", column=column.name)


_MAKERS: Final = {
    "bool": _truths,
    RAW: _raw,
    "int2": _ints,
    "int4": _ints,
    NUMBER: _ints,
    "date": _dates,
    "time": _times,
    "timestamp": _moments,
    "numeric": _numerics,
    "uuid": _uuids,
    "jsonb": _jsonb,
}


@numba.njit(cache=True)
def _number(h, value, digits):  # type: ignore[no-untyped-def]
    """The hash with the decimal text of the value."""
    left = np.uint64(value)
    if value < 0:
        h = (h ^ np.uint64(45)) * PRIME
        left = np.uint64(0) - left
    count = 0
    while left > 0 or count == 0:
        digits[count] = np.uint64(48) + left % np.uint64(10)
        left //= np.uint64(10)
        count += 1
    while count > 0:
        count -= 1
        h = (h ^ np.uint64(digits[count])) * PRIME
    return h


@numba.njit(cache=True, nogil=True)
def _owned(b, offset, length, keys, widths, texts, seed, bucket, buckets, out):  # type: ignore[no-untyped-def]
    digits = np.empty(20, np.uint8)
    for i in range(out.shape[0]):
        h = seed
        for k in range(keys.shape[0]):
            o = offset[keys[k], i]
            n = length[keys[k], i]
            width = widths[k]
            if n >= 0:
                if width == 0:
                    for x in range(o, o + n):
                        h = (h ^ np.uint64(b[x])) * PRIME
                elif width == 16:
                    for x in range(16):
                        if x == 4 or x == 6 or x == 8 or x == 10:
                            h = (h ^ np.uint64(45)) * PRIME
                        h = (h ^ np.uint64(texts[b[o + x], 0])) * PRIME
                        h = (h ^ np.uint64(texts[b[o + x], 1])) * PRIME
                elif width == 8:
                    h = _number(h, np.int64(big64(b, o)), digits)
                elif width == 4:
                    h = _number(h, np.int64(big32(b, o)), digits)
                else:
                    h = _number(h, np.int64(big16(b, o)), digits)
            h = (h ^ np.uint64(255)) * PRIME
        out[i] = is_mine(h | np.uint64(1 << 63), bucket, buckets)


def owned(found: Fields, forms: Sequence[str], keys: tuple[int, ...], oid: int, bucket: int, buckets: int) -> Any:
    """Which rows belong to the bucket; the same key is in the same bucket as in the log, where it stands as text."""
    out = np.empty(len(found.numbers), np.bool_)
    if not keys:
        out[:] = ((oid ^ (oid >> 29)) % buckets) == bucket
        return out
    widths = np.array([_KEYS[forms[k]] for k in keys], np.int64)
    for k, width in zip(keys, widths, strict=True):
        if width and not np.isin(found.length[k], (-1, width)).all():
            raise DecodeFailed("a key does not have its form")
    seed = np.uint64(int(FNV) ^ oid)
    _owned(found.b, found.offset, found.length, np.array(keys, np.int64), widths, _DIGITS, seed, bucket, buckets, out)
    return out


def warm() -> None:
    """Loads or compiles the kernels."""
    binary.warm()
    fields = Fields(np.zeros(8, np.uint8), np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int32), np.zeros(0, np.int64))
    owned(fields, [NUMBER], (0,), 1, 0, 2)
