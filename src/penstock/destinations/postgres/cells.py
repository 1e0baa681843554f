"""Cells: Arrow columns as the binary form of PostgreSQL's values, whole columns at a time.

A cell is its length and its bytes. The cells of a column behind each other are the body of an array parameter; the cells of a
row behind each other are a row of COPY's binary format. Types whose binary form is not worth knowing travel as text, and the
statement casts them. numpy and Arrow do all of it: numba would cost the worker 60 MB of memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.postgres.odd import NOT_A_NUMBER

# PostgreSQL counts days and microseconds from 2000. At the edges the difference wraps around, there and back: see odd.py.
DAYS: Final = 10_957
MICROSECONDS: Final = DAYS * 86_400_000_000
_NULL: Final = -1
# Integer and fraction are cut into groups of four digits by 64-bit arithmetic.
_DIGITS, _SCALE = 18, 16

Wire = tuple[str, int]
"""A type that values travel in: its name, and its number on every server."""

BOOL: Final[Wire] = ("bool", 16)
BYTEA: Final[Wire] = ("bytea", 17)
INT8: Final[Wire] = ("int8", 20)
INT2: Final[Wire] = ("int2", 21)
INT4: Final[Wire] = ("int4", 23)
TEXT: Final[Wire] = ("text", 25)
FLOAT4: Final[Wire] = ("float4", 700)
FLOAT8: Final[Wire] = ("float8", 701)
MONEY: Final[Wire] = ("money", 790)
DATE: Final[Wire] = ("date", 1082)
TIME: Final[Wire] = ("time", 1083)
TIMESTAMP: Final[Wire] = ("timestamp", 1114)
TIMESTAMPTZ: Final[Wire] = ("timestamptz", 1184)
NUMERIC: Final[Wire] = ("numeric", 1700)

_PLAIN: Final[dict[pa.DataType, Wire]] = {
    pa.bool_(): BOOL,
    pa.int16(): INT2,
    pa.int32(): INT4,
    pa.int64(): INT8,
    pa.float32(): FLOAT4,
    pa.float64(): FLOAT8,
    pa.binary(): BYTEA,
    pa.large_binary(): BYTEA,
    pa.date32(): DATE,
    pa.time64("us"): TIME,
}
_NUMBERS: Final = {
    "bool": ">u1", "int2": ">i2", "int4": ">i4", "int8": ">i8", "float4": ">f4", "float8": ">f8", "money": ">i8",
    "date": ">i4", "time": ">i8", "timestamp": ">i8", "timestamptz": ">i8",
}  # fmt: skip


def wire_of(kind: pa.DataType, money: bool = False) -> Wire:
    """The type that values of an Arrow type travel in; text for all that have no other."""
    if money and pa.types.is_decimal128(kind) and kind.scale == 2:
        return MONEY
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return TIMESTAMP if kind.tz is None else TIMESTAMPTZ
    if pa.types.is_decimal128(kind) and kind.precision <= _DIGITS and 0 <= kind.scale <= _SCALE:
        return NUMERIC
    return _PLAIN.get(kind, TEXT)


def cells(values: pa.ChunkedArray, wire: Wire) -> pa.Array:
    """The values as cells: one binary each, none of them null."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if wire == TEXT:
        return _strings(_text(array))
    if wire == BYTEA:
        return _strings(array)
    absent = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if wire == NUMERIC:
        return _fixed(_numeric(array), absent)
    return _fixed(_numbers(array, wire), absent)


def array_parameter(column: pa.Array, wire: Wire) -> bytes:
    """The cells of a column as an array in binary form."""
    if not len(column):
        return struct.pack(">iii", 0, 0, wire[1])
    return struct.pack(">iiiii", 1, 1, wire[1], len(column), 1) + memoryview(_body(column))


HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER: Final = struct.pack(">h", -1)


def copy_rows(columns: Sequence[pa.Array]) -> Any:
    """The cells of columns as rows of COPY's binary format, between its header and its trailer."""
    wide = sum(column.nbytes for column in columns) >= 1 << 30
    kind = pa.large_binary() if wide else pa.binary()
    count = pa.scalar(struct.pack(">h", len(columns)), kind)
    joined = pc.binary_join_element_wise(count, *(column.cast(kind) for column in columns), pa.scalar(b"", kind))
    return memoryview(_body(joined))


def _body(column: pa.Array) -> pa.Buffer:
    """The bytes of all values behind each other."""
    _, offsets, data = column.buffers()
    if data is None:
        return pa.py_buffer(b"")
    edges = np.frombuffer(offsets, np.int64 if pa.types.is_large_binary(column.type) else np.int32)
    begin, end = int(edges[column.offset]), int(edges[column.offset + len(column)])
    return data.slice(begin, end - begin)


def _numbers(array: pa.Array, wire: Wire) -> Any:
    """The payloads of numbers, a line of bytes for each."""
    kind = _NUMBERS[wire[0]]
    raw: Any
    if wire == BOOL:
        raw = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    elif wire == MONEY:
        raw = _wide(array)[:, 0]
    else:
        raw = _raw(array, np.dtype(kind).newbyteorder("="))
        if wire == DATE:
            raw = raw - np.int32(DAYS)
        elif wire in (TIMESTAMP, TIMESTAMPTZ):
            raw = raw - np.int64(MICROSECONDS)
    return raw.astype(kind).view(np.uint8).reshape(len(array), -1)


def _raw(array: pa.Array, kind: Any) -> Any:
    """The values as they lie in memory; what stands behind a null is anybody's guess."""
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), kind)
    return np.frombuffer(data, kind)[array.offset : array.offset + len(array)]


def _wide(array: pa.Array) -> Any:
    """Decimals as pairs of 64 bits, the lower first."""
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros((len(array), 2), np.int64)
    return np.frombuffer(data, np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]


def _numeric(array: pa.Array) -> Any:
    """The payloads of decimals: groups of four digits, as many for every value as the type may need.

    The server itself leaves out groups of zeros before and behind.
    """
    scale = array.type.scale
    whole, parts = -(-(array.type.precision - scale) // 4), -(-scale // 4)
    pairs = _wide(array)
    low = pairs[:, 0]
    odd = pairs[:, 1] != low >> 63
    amount = np.abs(np.where(odd, 0, low))
    before, behind = np.divmod(amount, 10**scale)
    behind = behind * 10 ** (parts * 4 - scale)
    fields = np.zeros((len(array), 4 + whole + parts), ">u2")
    fields[:, 0] = whole + parts
    fields[:, 1] = np.uint16((whole - 1) & 0xFFFF)
    fields[:, 2] = np.where(odd, 0xC000, np.where(low < 0, 0x4000, 0))
    fields[:, 3] = scale
    for place in range(whole - 1, -1, -1):
        before, fields[:, 4 + place] = np.divmod(before, 10_000)
    for place in range(parts - 1, -1, -1):
        behind, fields[:, 4 + whole + place] = np.divmod(behind, 10_000)
    return fields.view(np.uint8).reshape(len(array), -1)


def _fixed(payloads: Any, absent: Any) -> pa.Array:
    """Cells of values that all have the same length; of absent ones only the mark remains."""
    rows, width = payloads.shape
    lines = np.empty((rows, 4 + width), np.uint8)
    lines[:, :4] = np.frombuffer(struct.pack(">i", width), np.uint8)
    lines[:, 4:] = payloads
    if absent is None:
        offsets = np.arange(rows + 1, dtype=np.int64) * (4 + width)
        return _binaries(offsets, lines.reshape(-1))
    lines[absent, :4] = 255
    kept = np.ones_like(lines, np.bool_)
    kept[absent, 4:] = False
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.where(absent, 4, 4 + width), out=offsets[1:])
    return _binaries(offsets, lines[kept])


def _strings(array: pa.Array) -> pa.Array:
    """Cells of texts or bytes."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) or array.nbytes >= 1 << 30
    kind = pa.large_binary() if wide else pa.binary()
    lengths = pc.fill_null(pc.binary_length(array), _NULL).to_numpy(zero_copy_only=False).astype(">i4")
    marks = _binaries(np.arange(len(array) + 1, dtype=np.int64) * 4, lengths.view(np.uint8))
    bodies = pc.fill_null(array.cast(kind), pa.scalar(b"", kind))
    return pc.binary_join_element_wise(marks.cast(kind), bodies, pa.scalar(b"", kind))


def _binaries(offsets: Any, data: Any) -> pa.Array:
    wide = len(data) >= 1 << 31
    kind, edge = (pa.large_binary(), np.int64) if wide else (pa.binary(), np.int32)
    buffers = [None, pa.py_buffer(offsets.astype(edge)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _text(array: pa.Array) -> pa.Array:
    """Values as texts that the server reads."""
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array
    if pa.types.is_decimal128(array.type):
        strange = _is_nan(array)
        if strange is not None:
            return pc.if_else(strange, "NaN", pc.if_else(strange, pa.scalar(0, array.type), array).cast(pa.string()))
    return array.cast(pa.string())


def _is_nan(array: pa.Array) -> pa.Array | None:
    """Where the value that no number of the type has stands; None when it stands nowhere."""
    pairs = _wide(array)
    found = (pairs[:, 0] == NOT_A_NUMBER[0]) & (pairs[:, 1] == NOT_A_NUMBER[1])
    return pa.array(found) if found.any() else None
