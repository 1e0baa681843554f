"""XXH64, compiled: the checksum of a chunk file's blocks, several times as fast as zlib's CRC."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from penstock.sources.postgres.values.words import word

_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)


@numba.njit(cache=True, inline="always")
def _turned(value, bits):  # type: ignore[no-untyped-def]
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@numba.njit(cache=True, inline="always")
def _round(state, value):  # type: ignore[no-untyped-def]
    return _turned(state + value * _P2, 31) * _P1


@numba.njit(cache=True, inline="always")
def _merged(h, state):  # type: ignore[no-untyped-def]
    return (h ^ _round(np.uint64(0), state)) * _P1 + _P4


@numba.njit(cache=True, nogil=True)
def _xxh64(b, size, seed):  # type: ignore[no-untyped-def]
    p = 0
    if size >= 32:
        v1, v2, v3, v4 = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while p + 32 <= size:
            v1 = _round(v1, word(b, p))
            v2 = _round(v2, word(b, p + 8))
            v3 = _round(v3, word(b, p + 16))
            v4 = _round(v4, word(b, p + 24))
            p += 32
        h = _turned(v1, 1) + _turned(v2, 7) + _turned(v3, 12) + _turned(v4, 18)
        h = _merged(_merged(_merged(_merged(h, v1), v2), v3), v4)
    else:
        h = seed + _P5
    h += np.uint64(size)
    while p + 8 <= size:
        h = _turned(h ^ _round(np.uint64(0), word(b, p)), 27) * _P1 + _P4
        p += 8
    if p + 4 <= size:
        four = np.uint64(b[p]) | np.uint64(b[p + 1]) << np.uint64(8)
        four |= np.uint64(b[p + 2]) << np.uint64(16) | np.uint64(b[p + 3]) << np.uint64(24)
        h = _turned(h ^ (four * _P1), 23) * _P2 + _P3
        p += 4
    while p < size:
        h = _turned(h ^ (np.uint64(b[p]) * _P5), 11) * _P1
        p += 1
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


def xxh64(data: Any, seed: int = 0) -> int:
    """The checksum of contiguous bytes; that of what stood before as `seed` makes it one of everything up to their end."""
    b = np.frombuffer(data, np.uint8)
    return int(_xxh64(b, len(b), np.uint64(seed)))


def warm() -> None:
    """Loads or compiles the kernel for bytes that may and that may not be written."""
    xxh64(b"")
    xxh64(bytearray(1))
