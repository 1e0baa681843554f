"""Columns: located texts of one column become an Arrow array, with what the array cannot hold kept beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Odd
from penstock.errors import DecodeFailed
from penstock.sources.postgres import types as t
from penstock.sources.postgres import values

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_TEXT = ord("t")
_BINARY = ord("b")
_UNCHANGED = ord("u")

_WIDTH: dict[int, Any] = {t.INT2: np.int16, t.INT4: np.int32, t.INT8: np.int64, t.OID: np.uint32}


def unchanged_mask(kind: Bytes) -> pa.Array | None:
    """True where the log did not carry the value; None when it carried all."""
    mask = kind == _UNCHANGED
    return pa.array(mask) if mask.any() else None


def build(b: Bytes, kind: Bytes, offset: Ints, length: Ints, oid: int, arrow: pa.DataType) -> tuple[pa.Array, Odd | None]:
    """The column's values; NULL, unchanged and odd cells are null in the array."""
    if (kind == _BINARY).any():
        raise DecodeFailed("the server sent a value in binary form, which was not asked for")
    bad = np.zeros(len(kind), np.bool_)
    wrong, buffers = _convert(b, kind, offset, length, oid, arrow, bad)
    if buffers is None:
        return _parsed_by_arrow(texts(b, kind, offset, length, pa.string()), arrow)
    valid = kind == _TEXT
    odd = None
    if wrong:
        odd = _odd(b, kind, offset, length, bad)
        valid &= ~bad
    return pa.Array.from_buffers(arrow, len(kind), [_bitmap(valid), *buffers]), odd


def _convert(
    b: Bytes, kind: Bytes, offset: Ints, length: Ints, oid: int, arrow: pa.DataType, bad: npt.NDArray[np.bool_]
) -> tuple[int, list[pa.Buffer] | None]:
    """How many cells are bad, and the array's buffers; None as buffers when Arrow's own parser is to do it."""
    n = len(kind)
    if pa.types.is_string(arrow):
        return 0, _text_buffers(b, kind, offset, length)
    if oid in _WIDTH:
        out: Any = np.empty(n, _WIDTH[oid])
        return values.parse_int(b, kind, offset, length, out, bad), [pa.py_buffer(out)]
    if oid == t.NUMERIC:
        out = np.empty((n, 2), np.int64)
        return values.parse_decimal(b, kind, offset, length, arrow.precision, arrow.scale, out, bad), [pa.py_buffer(out)]
    if oid in (t.TIMESTAMP, t.TIMESTAMPTZ):
        out = np.empty(n, np.int64)
        return values.parse_timestamp(b, kind, offset, length, oid == t.TIMESTAMPTZ, out, bad), [pa.py_buffer(out)]
    if oid == t.DATE:
        out = np.empty(n, np.int32)
        return values.parse_date(b, kind, offset, length, out, bad), [pa.py_buffer(out)]
    if oid == t.TIME:
        out = np.empty(n, np.int64)
        return values.parse_time(b, kind, offset, length, out, bad), [pa.py_buffer(out)]
    if oid == t.BOOL:
        out = np.empty(n, np.bool_)
        wrong = values.parse_bool(b, kind, offset, length, out, bad)
        return wrong, [pa.py_buffer(np.packbits(out, bitorder="little"))]
    if oid == t.BYTEA:
        out = np.empty(values.total_text(kind, length) // 2, np.uint8)
        offsets = np.empty(n + 1, np.int32)
        wrong = values.parse_bytea(b, kind, offset, length, out, offsets, bad)
        return wrong, [pa.py_buffer(offsets), pa.py_buffer(out)]
    return 0, None


def _text_buffers(b: Bytes, kind: Bytes, offset: Ints, length: Ints) -> list[pa.Buffer]:
    out = np.empty(values.total_text(kind, length), np.uint8)
    offsets = np.empty(len(kind) + 1, np.int32)
    values.gather(b, kind, offset, length, out, offsets)
    return [pa.py_buffer(offsets), pa.py_buffer(out)]


def texts(b: Bytes, kind: Bytes, offset: Ints, length: Ints, arrow: pa.DataType) -> pa.Array:
    """The located bytes as they are, as strings or binaries; null where there is no text."""
    return pa.Array.from_buffers(arrow, len(kind), [_bitmap(kind == _TEXT), *_text_buffers(b, kind, offset, length)])


def _parsed_by_arrow(texts: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, Odd | None]:
    # Shortest round-trip float texts need a correct parser; Arrow has one, and reads NaN and Infinity too.
    return pc.cast(texts, arrow), None


def _odd(b: Bytes, kind: Bytes, offset: Ints, length: Ints, bad: npt.NDArray[np.bool_]) -> Odd:
    rows = np.nonzero(bad)[0]
    return Odd(pa.array(rows, pa.int64()), texts(b, kind[rows], offset[rows], length[rows], pa.string()))


def _bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
