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
MOST_BYTES: Final = (1 << 31) - 1
"""What the 32-bit offsets of an Arrow string or binary array reach."""

_STRINGS: Final = pa.string().id
_FLOATS: Final = frozenset((pa.float32().id, pa.float64().id))
_WIDTH: Final[dict[int, Any]] = {
    pa.int16().id: np.iinfo(np.int16),
    pa.int32().id: np.iinfo(np.int32),
    pa.int64().id: np.iinfo(np.int64),
    pa.uint32().id: np.iinfo(np.uint32),
}
# What the server writes for a float, so that the one text Arrow's parser does not know can be found among many.
_FLOAT: Final = r"^(-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?|NaN|-?Infinity)$"


def unchanged_masks(kind: Bytes) -> tuple[pa.Array | None, ...]:
    """Per line of the matrix what is true where the log did not carry the value; None when it carried all."""
    unchanged = kind == _UNCHANGED
    if not unchanged.any():
        return (None,) * len(kind)
    return tuple(pa.array(mask) if mask.any() else None for mask in unchanged)


def build_all(b: Bytes, kind: Any, offset: Any, length: Any, wanted: Sequence[Column]) -> tuple[list[pa.Array], dict[str, Odd]]:
    """The arrays of all columns, a line of the matrices each, and the odd cells of those that have some."""
    arrays, odd = [], {}
    whole = is_whole(kind)
    for i, column in enumerate(wanted):
        array, strange = build(b, kind[i], offset[i], length[i], column, whole)
        arrays.append(array)
        if strange is not None:
            odd[column.name] = strange
    return arrays, odd


def is_whole(kind: Bytes) -> bool:
    """Whether every cell is a text: most small batches are, and need no look at each of their columns."""
    return bool((kind == TEXT).all())


def build(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, whole: bool = False) -> tuple[pa.Array, Odd | None]:
    """The column's values; NULL, unchanged and odd cells are null in the array. `whole` says that every cell is a text."""
    if not whole and (kind == _BINARY).any():
        raise DecodeFailed("the server sent a value in binary form, which was not asked for")
    code = column.type.id
    if code == _STRINGS:
        return texts(b, kind, offset, length, whole=whole), None
    if code in _FLOATS:
        return _floats(texts(b, kind, offset, length, whole=whole), column)
    convert = _CONVERTERS.get(code)
    if convert is None:
        raise DecodeFailed(f"the journal asks for a column of type {column.type}, which no value of the server becomes")
    bad = np.zeros(len(kind), np.bool_)
    wrong, buffers = convert(b, kind, offset, length, column, bad)
    odd = _odd(b, kind, offset, length, bad) if wrong else None
    valid = None if whole and odd is None else bitmap((kind == TEXT) & ~bad)
    return pa.Array.from_buffers(column.type, len(kind), [valid, *buffers]), odd


Converted = tuple[int, list[pa.Buffer]]
"""How many cells are bad, and the array's buffers behind its bitmap."""


def _integers(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: Any) -> Converted:
    limits = _WIDTH[column.type.id]
    out = np.empty(len(kind), limits.dtype)
    wrong = numbers.parse_int(b, kind, offset, length, int(limits.min), int(limits.max), out, bad)
    return wrong, [pa.py_buffer(out)]


def _naturals(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: Any) -> Converted:
    out = np.empty(len(kind), np.uint64)
    return numbers.parse_natural(b, kind, offset, length, out, bad), [pa.py_buffer(out)]


def _decimals(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: Any) -> Converted:
    out: Any = np.empty((len(kind), 2), np.int64)
    arrow, money = column.type, column.meaning == "money"
    wrong = numbers.parse_decimal(b, kind, offset, length, arrow.precision, arrow.scale, money, out, bad)
    return wrong, [pa.py_buffer(out)]


def _timestamps(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: Any) -> Converted:
    out = np.empty(len(kind), np.int64)
    return moments.parse_timestamp(b, kind, offset, length, column.type.tz is not None, out, bad), [pa.py_buffer(out)]


def _dates(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: Any) -> Converted:
    out = np.empty(len(kind), np.int32)
    return moments.parse_date(b, kind, offset, length, out, bad), [pa.py_buffer(out)]


def _times(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: Any) -> Converted:
    out = np.empty(len(kind), np.int64)
    return moments.parse_time(b, kind, offset, length, out, bad), [pa.py_buffer(out)]


def _truths(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: Any) -> Converted:
    truth = np.empty(len(kind), np.bool_)
    wrong = strings.parse_bool(b, kind, offset, length, truth, bad)
    return wrong, [pa.py_buffer(np.packbits(truth, bitorder="little"))]


def _binaries(b: Bytes, kind: Bytes, offset: Ints, length: Ints, column: Column, bad: Any) -> Converted:
    out = np.empty(_size(kind, length) // 2, np.uint8)
    offsets = np.empty(len(kind) + 1, np.int32)
    wrong = strings.parse_bytea(b, kind, offset, length, out, offsets, bad)
    return wrong, [pa.py_buffer(offsets), pa.py_buffer(out)]


# By type id: asking `pa.types` one question after the other took a small epoch longer than its values.
_CONVERTERS: Final = {
    **dict.fromkeys(_WIDTH, _integers),
    pa.uint64().id: _naturals,
    pa.decimal128(1).id: _decimals,
    pa.timestamp("us").id: _timestamps,
    pa.date32().id: _dates,
    pa.time64("us").id: _times,
    pa.bool_().id: _truths,
    pa.binary().id: _binaries,
}


def texts(b: Bytes, kind: Bytes, offset: Ints, length: Ints, arrow: pa.DataType = _STRING, *, whole: bool = False) -> pa.Array:
    """The located bytes as they are, as strings or binaries; null where there is no text, and nowhere when `whole`.

    DecodeFailed when a string is not UTF-8, in which the server sends them: readers of Arrow rely on it.
    """
    out = np.empty(_size(kind, length), np.uint8)
    offsets = np.empty(len(kind) + 1, np.int32)
    more = strings.gather(b, kind, offset, length, out, offsets)
    valid = None if whole else bitmap(kind == TEXT)
    found = pa.Array.from_buffers(arrow, len(kind), [valid, pa.py_buffer(offsets), pa.py_buffer(out)])
    # ASCII is UTF-8: to look at every text once more took as long as to copy it.
    return validated(found) if more else found


def validated(found: pa.Array) -> pa.Array:
    """The same texts; DecodeFailed when one is not UTF-8."""
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeFailed("the journal holds text that is not UTF-8") from error
    return found


def _size(kind: Bytes, length: Ints) -> int:
    size = int(strings.total_text(kind, length))
    if size > MOST_BYTES:
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


def bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """The bits of an array's validity; None when all of it is valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def no_columns(count: int) -> pa.RecordBatch:
    """That many rows of a table without columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def warm() -> None:
    """Loads or compiles the kernels."""
    strings.warm()
    numbers.warm()
    moments.warm()
