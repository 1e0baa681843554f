"""Event ids: one fixed-width, sortable name per change, the same on every replay."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.formats.kernels import compiled

_MOST_ORDINAL = 0xFFFFFFFF


def event_ids(source: str, position: pa.Array, ordinal: pa.Array) -> pa.Array:
    """`{source}-{position:016X}-{ordinal:08X}` per row; equal changes get equal ids, later changes greater ones.

    Rows of a load have an ordinal of 16 digits: it begins with the number of their chunk.
    """
    head = np.frombuffer(f"{source}-".encode(), dtype=np.uint8)
    count = len(position)
    ordinals = ordinal.to_numpy(zero_copy_only=False)
    loaded = bool(count) and int(ordinals.min()) > _MOST_ORDINAL
    if count and not loaded and int(ordinals.max()) > _MOST_ORDINAL:
        raise ValueError(f"ordinal {int(ordinals.max())} does not fit an event id")
    # Eight digits at a time, put where they belong by numpy: one by one in a loop took two and a half times as long.
    data = np.empty(count, _form(len(head), loaded))
    low, high = np.empty(count, np.uint64), np.empty(count, np.uint64)
    _digits(position.to_numpy(zero_copy_only=False), low, high)
    data["head"], data["first"], data["second"], data["between"] = head, high, low, ord("-")
    _digits(ordinals, low, high)
    data["fourth"] = low
    if loaded:
        data["third"] = high
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(data.itemsize)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


@lru_cache(maxsize=64)
def _form(head: int, loaded: bool) -> np.dtype[Any]:
    fields: list[Any] = [("head", np.uint8, head), ("first", ">u8"), ("second", ">u8"), ("between", np.uint8)]
    return np.dtype([*fields, *([("third", ">u8")] if loaded else []), ("fourth", ">u8")])


@compiled
def _digits(values: Any, low: Any, high: Any) -> None:
    """The lower and the upper eight digits of whole numbers, each as a word whose highest byte is the first digit."""
    for i in range(len(values)):
        value = np.uint64(values[i])
        low[i] = _word(value & np.uint64(0xFFFFFFFF))
        high[i] = _word(value >> np.uint64(32))


@compiled
def _word(value: Any) -> Any:
    value = ((value & np.uint64(0xFFFF0000)) << np.uint64(16)) | (value & np.uint64(0xFFFF))
    value = ((value << np.uint64(8)) & np.uint64(0x00FF000000FF0000)) | (value & np.uint64(0x000000FF000000FF))
    value = ((value << np.uint64(4)) & np.uint64(0x0F000F000F000F00)) | (value & np.uint64(0x000F000F000F000F))
    letters = ((value + np.uint64(0x0606060606060606)) >> np.uint64(4)) & np.uint64(0x0101010101010101)
    return value + np.uint64(0x3030303030303030) + letters * np.uint64(7)


def warm() -> None:
    """Compiles or loads the kernel for read-only arrays, as Arrow hands them out."""
    event_ids("warm", pa.array([1], pa.int64()), pa.array([1], pa.int64()))
