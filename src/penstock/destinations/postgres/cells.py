"""Cells: Arrow columns as the binary form of PostgreSQL's values, whole columns at a time.

A cell is its length and its bytes. The cells of a column behind each other are the body of an array parameter; the cells of a
row behind each other are a row of COPY's binary format. Types whose binary form is not worth knowing travel as text, and the
statement casts them. numpy and Arrow do all of it: numba would cost the worker 60 MB of memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.postgres.odd import NOT_A_NUMBER

# PostgreSQL counts days and microseconds from 2000. At the edges the difference wraps around, there and back: see odd.py.
DAYS: Final = 10_957
MICROSECONDS: Final = DAYS * 86_400_000_000
_NULL: Final = -1
_FEW_BYTES: Final = 64 << 10
# Half of what 32-bit offsets reach.
_WIDE: Final = 1 << 30
# Integer and fraction are cut into groups of four digits by 64-bit arithmetic.
_DIGITS, _SCALE = 18, 16

_UUID_FORM: Final = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_PLACES: Final = [place for place in range(36) if place not in (8, 13, 18, 23)]
_NIBBLES: Final = np.zeros(256, np.uint8)
_NIBBLES[list(b"0123456789abcdef")] = range(16)
_NIBBLES[list(b"ABCDEF")] = range(10, 16)

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
UUID: Final[Wire] = ("uuid", 2950)
JSONB: Final[Wire] = ("jsonb", 3802)

_TEXTS: Final[dict[str, Wire]] = {
    "character varying": ("varchar", 1043),
    "bpchar": ("bpchar", 1042),
    "json": ("json", 114),
    "jsonb": JSONB,
    "uuid": UUID,
}
"""Types of the target that texts can travel as, by their names there."""

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


def wire_of(kind: pa.DataType, target: str) -> Wire:
    """The type that values of an Arrow type travel in to a column of the target; text for all that have no other."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _TEXTS.get(target, TEXT)
    if target == "money" and pa.types.is_decimal128(kind) and kind.scale == 2:
        return MONEY
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return TIMESTAMP if kind.tz is None else TIMESTAMPTZ
    if pa.types.is_decimal128(kind) and kind.precision <= _DIGITS and 0 <= kind.scale <= _SCALE:
        return NUMERIC
    return _PLAIN.get(kind, TEXT)


@dataclass(frozen=True)
class Cells:
    """The cells of a column behind each other; `offsets` says where each begins, and where the last ends."""

    offsets: Any
    data: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def binaries(self, kind: pa.DataType) -> pa.Array:
        """One binary of Arrow's for each cell."""
        edges = self.offsets.astype(np.int64 if pa.types.is_large_binary(kind) else np.int32)
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(edges), pa.py_buffer(self.data)])


def cells(array: pa.Array, wire: Wire) -> Cells:
    """The values as cells; texts that travel as UUIDs are some (`are_uuids`)."""
    if wire == UUID:
        return _fixed(_uuids(array), _absent(array))
    if wire == JSONB:
        # The version of the form, before the text.
        return _strings(pc.binary_join_element_wise(pa.scalar("\x01", array.type), array, pa.scalar("", array.type)))
    if wire[0] not in _NUMBERS and wire != NUMERIC:
        return _strings(array if wire == BYTEA else _text(array))
    return _fixed(_numeric(array) if wire == NUMERIC else _numbers(array, wire), _absent(array))


def are_uuids(values: pa.ChunkedArray) -> bool:
    """Whether all texts are UUIDs in their usual form, 36 characters with dashes."""
    return bool(pc.all(pc.match_substring_regex(values, _UUID_FORM), min_count=0).as_py())


def array_parameter(column: Cells, wire: Wire) -> bytes:
    """The cells of a column as an array in binary form."""
    if not len(column):
        return struct.pack(">iii", 0, 0, wire[1])
    return struct.pack(">iiiii", 1, 1, wire[1], len(column), 1) + memoryview(column.data)


HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER: Final = struct.pack(">h", -1)


def copy_rows(columns: Sequence[Cells]) -> memoryview:
    """The cells of columns as rows of COPY's binary format, between its header and its trailer."""
    wide = sum(len(column.data) for column in columns) >= _WIDE
    kind = pa.large_binary() if wide else pa.binary()
    count = pa.scalar(struct.pack(">h", len(columns)), kind)
    joined = pc.binary_join_element_wise(count, *(column.binaries(kind) for column in columns), pa.scalar(b"", kind))
    return memoryview(_bytes(joined)[1])


def _absent(array: pa.Array) -> Any:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _numbers(array: pa.Array, wire: Wire) -> Any:
    """The payloads of numbers, a line of bytes for each; what stands behind a null is anybody's guess."""
    if wire == BOOL:
        return _bits(array).reshape(-1, 1)
    kind = np.dtype(_NUMBERS[wire[0]])
    raw = _wide(array)[:, 0] if wire == MONEY else _raw(array, kind.newbyteorder("="))
    if wire == DATE:
        raw = raw - np.int32(DAYS)
    elif wire in (TIMESTAMP, TIMESTAMPTZ):
        raw = raw - np.int64(MICROSECONDS)
    return raw.astype(kind).view(np.uint8).reshape(len(array), kind.itemsize)


def _bits(array: pa.Array) -> Any:
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), np.uint8)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)]


def _raw(array: pa.Array, kind: Any) -> Any:
    """The values as they lie in memory."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), kind)
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)


def _wide(array: pa.Array) -> Any:
    """Decimals as pairs of 64 bits, the lower first."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros((len(array), 2), np.int64)
    return np.frombuffer(data, np.int64, len(array) * 2, array.offset * 16).reshape(-1, 2)


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
    return fields.view(np.uint8).reshape(len(array), 2 * (4 + whole + parts))


def _uuids(array: pa.Array) -> Any:
    """The payloads of UUIDs in their usual form."""
    absent = _absent(array)
    digits = _NIBBLES[_bytes(array if absent is None else array.drop_null())[1].reshape(-1, 36)[:, _PLACES]]
    found = (digits[:, ::2] << 4) | digits[:, 1::2]
    if absent is None:
        return found
    payloads = np.zeros((len(array), 16), np.uint8)
    payloads[~absent] = found
    return payloads


def _fixed(payloads: Any, absent: Any) -> Cells:
    """Cells of values that all have the same length; of absent ones only the mark remains."""
    rows, width = payloads.shape
    lines = np.empty((rows, 4 + width), np.uint8)
    lines[:, :4] = (0, 0, 0, width)
    lines[:, 4:] = payloads
    if absent is None:
        return Cells(np.arange(rows + 1, dtype=np.int64) * (4 + width), lines.reshape(-1))
    lines[absent, :4] = 255
    kept = np.ones(lines.shape, np.bool_)
    kept[absent, 4:] = False
    return Cells(_summed(np.where(absent, 4, 4 + width)), lines[kept])


def _strings(array: pa.Array) -> Cells:
    """Cells of texts or bytes."""
    edges, data = _bytes(array)
    absent = _absent(array)
    if absent is not None and np.diff(edges)[absent].any():
        # Bytes that nobody means may stand behind a null.
        edges, data = _bytes(pc.fill_null(array.cast(_kind(array)), b""))
    lengths = np.diff(edges)
    marks = (lengths if absent is None else np.where(absent, _NULL, lengths)).astype(">i4")
    offsets = _summed(lengths + 4)
    if len(data) > _FEW_BYTES:
        kind = _kind(array)
        heads = Cells(np.arange(len(array) + 1, dtype=np.int64) * 4, marks.view(np.uint8)).binaries(kind)
        bodies = Cells(edges - edges[0], data).binaries(kind)
        return Cells(offsets, _bytes(pc.binary_join_element_wise(heads, bodies, pa.scalar(b"", kind)))[1])
    # Seven times as fast for some rows, three times as slow for many.
    out = np.empty(int(offsets[-1]), np.uint8)
    heads = offsets[:-1, None] + np.arange(4)
    out[heads] = marks.view(np.uint8).reshape(-1, 4)
    free = np.ones(len(out), np.bool_)
    free[heads] = False
    out[free] = data
    return Cells(offsets, out)


def _kind(array: pa.Array) -> pa.DataType:
    is_wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) or array.nbytes >= _WIDE
    return pa.large_binary() if is_wide else pa.binary()


def _bytes(array: pa.Array) -> tuple[Any, Any]:
    """Where each value begins and ends, and the bytes of all of them behind each other."""
    _, offsets, data = array.buffers()
    if offsets is None or data is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    kind = np.dtype(np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32)
    edges = np.frombuffer(offsets, kind, len(array) + 1, array.offset * kind.itemsize)
    return edges, np.frombuffer(data, np.uint8)[int(edges[0]) : int(edges[-1])]


def _summed(lengths: Any) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


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
