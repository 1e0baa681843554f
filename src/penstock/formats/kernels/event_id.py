"""Event ids: one fixed-width, sortable name per change, the same on every replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.formats.kernels import compiled

_DIGITS = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8).copy()
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
    tail = 33 if loaded else 25
    data = np.empty(count * (len(head) + tail), dtype=np.uint8)
    _write_ids(head, position.to_numpy(zero_copy_only=False), ordinals, _DIGITS, tail, data)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(head) + tail)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


@compiled
def _write_ids(head: Any, position: Any, ordinal: Any, digits: Any, tail: int, data: Any) -> None:
    at = 0
    for row in range(len(position)):
        for byte in head:
            data[at] = byte
            at += 1
        value = np.uint64(position[row])
        for place in range(15, -1, -1):
            data[at + place] = digits[np.int64(value & np.uint64(15))]
            value >>= np.uint64(4)
        data[at + 16] = 45
        value = np.uint64(ordinal[row])
        for place in range(tail - 1, 16, -1):
            data[at + place] = digits[np.int64(value & np.uint64(15))]
            value >>= np.uint64(4)
        at += tail


def warm() -> None:
    """Compiles or loads the kernel for read-only arrays, as Arrow hands them out."""
    event_ids("warm", pa.array([1], pa.int64()), pa.array([1], pa.int64()))
