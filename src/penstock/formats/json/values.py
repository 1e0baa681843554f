"""Columns of values as columns of JSON text, and back, without a loop over rows in Python.

What JSON numbers cannot hold exactly travels as strings: decimals, NaN and the infinities, dates and times, bytes (base64).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.kernels import json_text, moments
from penstock.formats.kernels.moments import DATE, INSTANT, MOMENT_WIDTH, TIME, TIMESTAMP

_TEXT = pa.large_string()


def to_text(values: pa.Array) -> pa.Array:
    """Each value as JSON text; NULL as null."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _sized(values, json_text.escaped_sizes, json_text.escape)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _sized(values, json_text.base64_sizes, json_text.base64)
    if pa.types.is_decimal(kind):
        return _decimals(values)
    if (meaning := _meaning(kind)) is not None:
        return _moments(values, meaning)
    if pa.types.is_floating(kind):
        texts = pc.fill_null(pc.cast(values, _TEXT), "null")
        names = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"', "-0": "-0.0"}
        for arrow, ours in names.items():
            texts = pc.if_else(pc.equal(texts, arrow), ours, texts)
        return texts
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pc.fill_null(pc.cast(values, _TEXT), "null")
    return to_text(pc.cast(values, pa.string()))


def from_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values from the content of their JSON text (strings without quotes, base64 as text); null where there is none."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return texts.cast(kind)
    if (meaning := _meaning(kind)) is not None:
        return _parsed_moments(texts, meaning, kind)
    return pc.cast(texts, kind)


def positions_text(positions: pa.Array) -> pa.Array:
    """Positions as PostgreSQL writes them, in quotes."""
    ends = np.zeros(len(positions) + 1, np.int64)
    out = np.empty(len(positions) * 20, np.uint8)
    json_text.positions(_numbers(positions), ends, out)
    return _array(ends, out)


def _meaning(kind: pa.DataType) -> int | None:
    if pa.types.is_date32(kind):
        return DATE
    if pa.types.is_time64(kind) and kind.unit == "us":
        return TIME
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return TIMESTAMP if kind.tz is None else INSTANT
    return None


def _sized(values: pa.Array, sizes: Callable[..., None], write: Callable[..., None]) -> pa.Array:
    starts, data = _buffers(values)
    valid = _valid(values)
    ends = np.zeros(len(values) + 1, np.int64)
    sizes(starts, data, valid, ends)
    out = np.empty(int(ends[-1]), np.uint8)
    write(starts, data, valid, out)
    return _array(ends, out)


def _decimals(values: pa.Array) -> pa.Array:
    kind = values.type
    if kind.bit_width < 128:
        return _decimals(values.cast(pa.decimal128(kind.precision, kind.scale)))
    if kind.scale < 0:
        return _decimals(values.cast(pa.decimal256(76, 0)))
    width = kind.bit_width // 32
    raw = np.frombuffer(values.buffers()[1], np.uint32)[values.offset * width : (values.offset + len(values)) * width]
    ends = np.zeros(len(values) + 1, np.int64)
    out = np.empty(len(values) * (width * 10 + 14), np.uint8)
    json_text.decimals(raw.reshape(len(values), width), _valid(values), np.int64(kind.scale), ends, out)
    return _array(ends, out)


def _moments(values: pa.Array, meaning: int) -> pa.Array:
    numbers = _numbers(pc.fill_null(values.cast(pa.int32()) if meaning == DATE else values.view(pa.int64()), 0)).astype(np.int64)
    ends = np.zeros(len(values) + 1, np.int64)
    out = np.empty(len(values) * MOMENT_WIDTH, np.uint8)
    moments.moments(numbers, _valid(values), np.int64(meaning), ends, out)
    return _array(ends, out)


def _parsed_moments(texts: pa.Array, meaning: int, kind: pa.DataType) -> pa.Array:
    texts = texts.cast(_TEXT)
    starts, data = _buffers(texts)
    out = np.zeros(len(texts), np.int64)
    bad = moments.parse_moments(starts, data, _valid(texts), np.int64(meaning), out)
    if bad >= 0:
        raise ValueError(f"row {bad} is not a date or time as {kind}")
    numbers = pa.array(out, mask=~_valid(texts))
    return numbers.cast(pa.int32()).cast(kind) if meaning == DATE else numbers.view(kind)


def _buffers(values: pa.Array) -> tuple[Any, Any]:
    """Where each value of a string or binary array begins, and the bytes."""
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    _, offsets, data = values.buffers()
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    if offsets is None or not len(values):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    starts = np.frombuffer(offsets, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
    held = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    held.flags.writeable = False
    return starts.astype(np.int64), held


def _valid(values: pa.Array) -> Any:
    return np.ascontiguousarray(values.is_valid().to_numpy(zero_copy_only=False))


def _numbers(values: pa.Array) -> Any:
    return values.to_numpy(zero_copy_only=False)


def _array(ends: Any, out: Any) -> pa.Array:
    return pa.LargeStringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(out[: int(ends[-1])]))


def warm() -> None:
    """Compiles or loads the kernels for arrays as Arrow hands them out."""
    to_text(pa.array(["a"]))
    to_text(pa.array([b"a"]))
    to_text(pa.array([1], pa.decimal128(20, 2)))
    for kind in (pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        to_text(pa.array([0], kind))
    positions_text(pa.array([1], pa.int64()))
