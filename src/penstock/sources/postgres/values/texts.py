"""Compiled copies of texts, bytes and truth values."""

from __future__ import annotations

import numba
import numpy as np

from penstock.sources.postgres.values import TEXT, samples
from penstock.sources.postgres.values.words import copy_word, own, word

_HIGHEST = np.uint64(0x8080808080808080)


@numba.njit(cache=True, nogil=True)
def gather(b, kind, offset, length, out, offsets):  # type: ignore[no-untyped-def]
    """Copies the texts one behind the other; whether they may hold more than ASCII."""
    q = 0
    seen = np.uint64(0)
    end = b.shape[0] - 8
    room = out.shape[0] - 8
    for i in range(offset.shape[0]):
        offsets[i] = q
        if kind[i] == TEXT:
            o = offset[i]
            n = length[i]
            if o + n <= end and q + n <= room:
                # The last word may take up to seven bytes too many, which the next text overwrites.
                for x in range(0, n, 8):
                    seen |= own(word(b, o + x), n - x)
                    copy_word(out, q + x, b, o + x)
            else:
                for x in range(n):
                    seen |= np.uint64(b[o + x])
                    out[q + x] = b[o + x]
            q += n
    offsets[offset.shape[0]] = q
    return seen & _HIGHEST != 0


@numba.njit(cache=True, nogil=True)
def total_text(kind, length):  # type: ignore[no-untyped-def]
    """Bytes of all texts."""
    total = np.int64(0)
    for i in range(kind.shape[0]):
        if kind[i] == TEXT:
            total += length[i]
    return total


@numba.njit(cache=True, inline="always")
def _hex(c):  # type: ignore[no-untyped-def]
    if 48 <= c <= 57:
        return np.int64(c) - 48
    if 97 <= c <= 102:
        return np.int64(c) - 87
    if 65 <= c <= 70:
        return np.int64(c) - 55
    return np.int64(-1)


@numba.njit(cache=True, nogil=True)
def parse_bytea(b, kind, offset, length, out, offsets, bad):  # type: ignore[no-untyped-def]
    """`\\x` and hex digits to bytes."""
    q = 0
    wrong = 0
    for i in range(offset.shape[0]):
        offsets[i] = q
        bad[i] = False
        if kind[i] != TEXT:
            continue
        o = offset[i]
        n = length[i]
        if n < 2 or n % 2 or b[o] != 92 or b[o + 1] != 120:
            bad[i] = True
            wrong += 1
            continue
        start = q
        for x in range(o + 2, o + n, 2):
            high = _hex(b[x])
            low = _hex(b[x + 1])
            if high < 0 or low < 0:
                bad[i] = True
                break
            out[q] = (high << 4) | low
            q += 1
        if bad[i]:
            wrong += 1
            q = start
    offsets[offset.shape[0]] = q
    return wrong


@numba.njit(cache=True, nogil=True)
def parse_bool(b, kind, offset, length, out, bad):  # type: ignore[no-untyped-def]
    """`t` or `f`."""
    wrong = 0
    for i in range(offset.shape[0]):
        bad[i] = False
        out[i] = False
        if kind[i] == TEXT:
            c = b[offset[i]] if length[i] == 1 else 0
            out[i] = c == 116
            if c != 116 and c != 102:
                bad[i] = True
                wrong += 1
    return wrong


def warm() -> None:
    """Loads or compiles every kernel for the arrays that the decoder uses."""
    b, kind, offset, length, bad = samples()
    offsets = np.zeros(1, np.int32)
    total_text(kind, length)
    gather(b, kind, offset, length, np.zeros(0, np.uint8), offsets)
    parse_bytea(b, kind, offset, length, np.zeros(0, np.uint8), offsets, bad)
    parse_bool(b, kind, offset, length, np.zeros(0, np.bool_), bad)
