"""Tuples as pgoutput writes them: columns found in one without leaving its frame. Every function is given the frame's end."""

from __future__ import annotations

import numba
import numpy as np

from penstock.sources.postgres.walk import u32

PRIME = np.uint64(1099511628211)


@numba.njit(cache=True, inline="always")
def following(b, p, limit):  # type: ignore[no-untyped-def]
    """The byte after the column at p, or -1 when there is no whole column there."""
    if p >= limit:
        return np.int64(-1)
    kind = b[p]
    if kind == 116 or kind == 98:
        if p + 5 > limit:
            return np.int64(-1)
        p += 5 + u32(b, p + 1)
        return p if p <= limit else np.int64(-1)
    if kind == 110 or kind == 117:
        return p + 1
    return np.int64(-1)


@numba.njit(cache=True, inline="always")
def skip(b, p, limit):  # type: ignore[no-untyped-def]
    """The byte after the tuple at p, or -1."""
    if p + 2 > limit:
        return np.int64(-1)
    count = (np.int64(b[p]) << 8) | b[p + 1]
    p += 2
    for _ in range(count):
        p = following(b, p, limit)
        if p < 0:
            return np.int64(-1)
    return p


@numba.njit(cache=True)
def column(b, p, limit, wanted):  # type: ignore[no-untyped-def]
    """The byte of the wanted column's kind in the tuple at p, or -1; the column is whole."""
    if p + 2 > limit or wanted >= ((np.int64(b[p]) << 8) | b[p + 1]):
        return np.int64(-1)
    p += 2
    for _ in range(wanted):
        p = following(b, p, limit)
        if p < 0:
            return np.int64(-1)
    return p if following(b, p, limit) >= 0 else np.int64(-1)


@numba.njit(cache=True)
def key_hash(b, p, limit, other, keys, count, h):  # type: ignore[no-untyped-def]
    """FNV-1a over the key columns of the tuple at p; an unchanged key column is read from the tuple at `other`. 0 is an error."""
    for k in range(count):
        q = column(b, p, limit, keys[k])
        if q >= 0 and b[q] == 117 and other > 0:
            q = column(b, other, limit, keys[k])
        if q < 0:
            return np.uint64(0)
        if b[q] == 116 or b[q] == 98:
            for x in range(q + 5, q + 5 + u32(b, q + 1)):
                h = (h ^ np.uint64(b[x])) * PRIME
        h = (h ^ np.uint64(255)) * PRIME
    return h | np.uint64(1 << 63)


@numba.njit(cache=True)
def same_key(b, old, new, limit, keys, count):  # type: ignore[no-untyped-def]
    """Whether two tuples agree in the key columns; one the new tuple leaves unchanged agrees."""
    for k in range(count):
        p = column(b, old, limit, keys[k])
        q = column(b, new, limit, keys[k])
        if p < 0 or q < 0:
            return False
        if b[q] == 117:
            continue
        if b[p] != b[q]:
            return False
        if b[p] == 116 or b[p] == 98:
            length = u32(b, p + 1)
            if length != u32(b, q + 1):
                return False
            for x in range(length):
                if b[p + 5 + x] != b[q + 5 + x]:
                    return False
    return True
