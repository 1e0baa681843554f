"""The compiled passes over chunks: frames counted as they arrive, rows of a file shared out by key as the log's are."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from penstock.sources.postgres.scan import FNV, is_mine
from penstock.sources.postgres.tuples import PRIME
from penstock.sources.postgres.walk import u32

_TEXT: Final = 116
_ROW: Final = 100


@numba.njit(cache=True, nogil=True)
def count_rows(b, pos, end):  # type: ignore[no-untyped-def]
    """Rows whose frames begin in b[pos:end]; how many, the position behind them, and whether another frame stands there.

    The position may lie beyond `end`: the last row's bytes are not all there yet.
    """
    rows = 0
    while end - pos >= 5:
        size = u32(b, pos + 1)
        if b[pos] != _ROW or size < 5:
            return rows, pos, True
        pos += 1 + size
        rows += 1
    return rows, pos, False


@numba.njit(cache=True, nogil=True)
def _owned(b, kind, offset, length, keys, seed, bucket, buckets, out):  # type: ignore[no-untyped-def]
    for i in range(out.shape[0]):
        h = seed
        for k in range(keys.shape[0]):
            j = keys[k]
            if kind[j, i] == _TEXT:
                for x in range(offset[j, i], offset[j, i] + length[j, i]):
                    h = (h ^ np.uint64(b[x])) * PRIME
            h = (h ^ np.uint64(255)) * PRIME
        out[i] = is_mine(h | np.uint64(1 << 63), bucket, buckets)


def owned(b: Any, kind: Any, offset: Any, length: Any, keys: tuple[int, ...], oid: int, bucket: int, buckets: int) -> Any:
    """Which rows of located cells belong to the bucket; the same key is in the same bucket as in the log."""
    out = np.empty(kind.shape[1], np.bool_)
    if not keys:
        out[:] = ((oid ^ (oid >> 29)) % buckets) == bucket
        return out
    _owned(b, kind, offset, length, np.array(keys, np.int64), np.uint64(int(FNV) ^ oid), bucket, buckets, out)
    return out


SMALLEST_COMMIT = 100
"""Bytes of the frames that begin and end a transaction, or fewer: how many commits there can be."""


@numba.njit(cache=True, nogil=True)
def find_commits(b, pos, end, xids, positions):  # type: ignore[no-untyped-def]
    """The transactions that commit within b[pos:end] and where, into the two arrays; how many, -1 for broken frames."""
    count, xid = 0, np.int64(-1)
    while pos < end:
        if end - pos < 6 or b[pos] != _ROW:
            return -1
        limit = pos + 1 + u32(b, pos + 1)
        if limit > end or limit - pos < 6:
            return -1
        if b[pos + 5] == 119 and limit - pos > 30:
            op = b[pos + 30]
            if op == 66:
                if limit - pos < 51:
                    return -1
                xid = u32(b, pos + 47)
            elif op == 67 and xid >= 0:
                if limit - pos < 56:
                    return -1
                position = np.int64(0)
                for x in range(pos + 40, pos + 48):
                    position = (position << 8) | b[x]
                xids[count], positions[count] = xid, position
                count, xid = count + 1, np.int64(-1)
        pos = limit
    return count


def warm() -> None:
    """Loads or compiles the kernels."""
    b, cells = np.zeros(0, np.uint8), (1, 0)
    kind, offset, length = np.zeros(cells, np.uint8), np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    count_rows(b, 0, 0)
    owned(b, kind, offset, length, (0,), 1, 0, 2)
    find_commits(b, 0, 0, np.zeros(1, np.int64), np.zeros(1, np.int64))
