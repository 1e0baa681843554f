"""Columns: located texts of one column become an Arrow array, with what the array cannot hold kept beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Odd
from penstock.core.schema import Column
from penstock.errors import DecodeFailed
from penstock.sources.postgres.values import TEXT, moments, numbers
from penstock.sources.postgres.values import texts as strings

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_BINARY: Final = ord("b")
_UNCHANGED: Final = ord("u")
_STRING: Final = pa.string()
_MOST_BYTES: Final = (1 << 31) - 1
"""What the 32-bit offsets of an Arrow string or binary array reach."""

_WIDTH: Final[dict[pa.DataType, Any]] = {
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint32(): np.uint32,
}
# What the server writes for a float, so that the one text Arrow's parser does not know can be found among many.
_FLOAT: Final = r"^(-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?|NaN|-?Infinity)$"


def unchanged_mask(kind: Bytes) -> pa.Array | None:
    """True where the log did not carry the value; None when it carried all."""
    mask = kind == _UNCHANGED
    return pa.array(mask) if mask.any() else None


def build_all(b: Bytes, kind: Any, offset: Any, length: Any, wanted: Sequence[Column]) -> tuple[list[pa.Array], dict[str, Odd]]:
    """The arrays of all columns, a line of the matrices each, and the odd cells of those that have some."""
    arrays, odd = [], {}
    for i, column in enumerate(wanted):
        array, strange = build(b, kind[i], offset[i], length[i], column)
        arrays.append(array)
        if strange is not None:
            odd[column.name] = strange
    return arrays, odd


def build(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column) -> tuple[pa.Array, Odd | None]:
    """The column's values; NULL, unchanged and odd cells are null in the array."""
    if (kind == _BINARY).any():
        raise DecodeFailed("the server sent a value in binary form, which was not asked for")
    if pa.types.is_string(column.type):
        return texts(b, kind, offset, length), None
    if pa.types.is_floating(column.type):
        return _floats(texts(b, kind, offset, length), column)
    bad = np.zeros(len(kind), np.bool_)
    wrong, buffers = _convert(b, kind, offset, length, column, bad)
    valid = kind == TEXT
    odd = None
    if wrong:
        odd = _odd(b, kind, offset, length, bad)
        valid &= ~bad
    return pa.Array.from_buffers(column.type, len(kind), [_bitmap(valid), *buffers]), odd


def _convert(
    b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: npt.NDArray[np.bool_]
) -> tuple[int, list[pa.Buffer]]:
    """How many cells are bad, and the array's buffers."""
    n, arrow = len(kind), column.type
    out: Any
    if arrow in _WIDTH:
        out = np.empty(n, _WIDTH[arrow])
        limits = np.iinfo(out.dtype)
        wrong = numbers.parse_int(b, kind, offset, length, int(limits.min), int(limits.max), out, bad)
    elif pa.types.is_uint64(arrow):
        out = np.empty(n, np.uint64)
        wrong = numbers.parse_natural(b, kind, offset, length, out, bad)
    elif pa.types.is_decimal(arrow):
        out = np.empty((n, 2), np.int64)
        money = column.meaning == "money"
        wrong = numbers.parse_decimal(b, kind, offset, length, arrow.precision, arrow.scale, money, out, bad)
    elif pa.types.is_timestamp(arrow):
        out = np.empty(n, np.int64)
        wrong = moments.parse_timestamp(b, kind, offset, length, arrow.tz is not None, out, bad)
    elif pa.types.is_date32(arrow):
        out = np.empty(n, np.int32)
        wrong = moments.parse_date(b, kind, offset, length, out, bad)
    elif pa.types.is_time64(arrow):
        out = np.empty(n, np.int64)
        wrong = moments.parse_time(b, kind, offset, length, out, bad)
    elif pa.types.is_boolean(arrow):
        truth = np.empty(n, np.bool_)
        wrong = strings.parse_bool(b, kind, offset, length, truth, bad)
        out = np.packbits(truth, bitorder="little")
    elif pa.types.is_binary(arrow):
        out = np.empty(_size(kind, length) // 2, np.uint8)
        offsets = np.empty(n + 1, np.int32)
        wrong = strings.parse_bytea(b, kind, offset, length, out, offsets, bad)
        return wrong, [pa.py_buffer(offsets), pa.py_buffer(out)]
    else:
        raise DecodeFailed(f"the journal asks for a column of type {arrow}, which no value of the server becomes")
    return wrong, [pa.py_buffer(out)]


def texts(b: Bytes, kind: Bytes, offset: Ints, length: Ints, arrow: pa.DataType = _STRING) -> pa.Array:
    """The located bytes as they are, as strings or binaries; null where there is no text.

    DecodeFailed when a string is not UTF-8, in which the server sends them: readers of Arrow rely on it.
    """
    out = np.empty(_size(kind, length), np.uint8)
    offsets = np.empty(len(kind) + 1, np.int32)
    strings.gather(b, kind, offset, length, out, offsets)
    found = pa.Array.from_buffers(arrow, len(kind), [_bitmap(kind == TEXT), pa.py_buffer(offsets), pa.py_buffer(out)])
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeFailed("the journal holds text that is not UTF-8") from error
    return found


def _size(kind: Bytes, length: Ints) -> int:
    size = int(strings.total_text(kind, length))
    if size > _MOST_BYTES:
        raise DecodeFailed(f"{size} bytes of one column stand in one slice, more than one array holds")
    return size


def _floats(found: pa.Array, column: Column) -> tuple[pa.Array, Odd | None]:
    # Shortest round-trip float texts need a correct parser; Arrow has one, and reads NaN and Infinity too.
    try:
        return pc.cast(found, column.type), None
    except pa.ArrowInvalid:
        odd = pc.invert(pc.fill_null(pc.match_substring_regex(found, _FLOAT), True))
        rows = pc.indices_nonzero(odd).cast(pa.int64())
    try:
        return pc.cast(pc.if_else(odd, pa.scalar(None, pa.string()), found), column.type), Odd(rows, found.take(rows))
    except pa.ArrowInvalid as error:
        raise DecodeFailed(f"column {column.name} holds a float that cannot be read", column=column.name) from error


def _odd(b: Bytes, kind: Bytes, offset: Ints, length: Ints, bad: npt.NDArray[np.bool_]) -> Odd:
    rows = np.nonzero(bad)[0]
    return Odd(pa.array(rows, pa.int64()), texts(b, kind[rows], offset[rows], length[rows]))


def _bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def no_columns(count: int) -> pa.RecordBatch:
    """That many rows of a table without columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def warm() -> None:
    """Loads or compiles the kernels."""
    strings.warm()
    numbers.warm()
    moments.warm()
