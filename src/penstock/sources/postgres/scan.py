"""The compiled scan of journal slices: which rows there are, whose bucket they belong to, where their tuples stand."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from penstock.sources.postgres.tuples import key_hash, same_key, skip
from penstock.sources.postgres.walk import u32, u64

OK: Final = 0
NO_RELATION: Final = -1
BAD_FRAME: Final = -2
BAD_TUPLE: Final = -3
TOO_MANY: Final = -4

MAX_KEY: Final = 32
ABORT_BYTES: Final = 39
"""Bytes of a frame that names a rolled-back subtransaction."""

# Columns of the scan's output.
NEW: Final = 0
"""Byte of the row's tuple: the new one, or the old one of a delete or leave; 0 for a truncate."""
OLD: Final = 1
"""Byte of an update's old tuple, 0 when the log has none."""
LIMIT: Final = 2
"""Byte after the row's frame."""
ENTRY: Final = 3
OPERATION: Final = 4
IMAGE: Final = 5
POSITION: Final = 6
ORDINAL: Final = 7
XID: Final = 8
COMMITTED_AT: Final = 9
OUTPUTS: Final = 10

# Columns of the scan's input, a line per slice.
START: Final = 0
END: Final = 1
PIECE: Final = 2
PIECE_POSITION: Final = 3
PIECE_XID: Final = 4
PIECE_TIME: Final = 5
PIECE_ORDINAL: Final = 6
STREAMED: Final = 7
"""Whether messages carry the id of their subtransaction."""
GONE_FROM: Final = 8
"""Where the subtransactions that were rolled back stand among all such, sorted."""
GONE_TO: Final = 9
INPUTS: Final = 10

_EPOCH_2000: Final = 946_684_800_000_000
FNV: Final = np.uint64(14695981039346656037)
"""Where the hash of a key begins, mixed with the table's oid."""


@numba.njit(cache=True, inline="always")
def _find(oids, values, oid):  # type: ignore[no-untyped-def]
    mask = oids.shape[0] - 1
    at = (oid * 2654435761) & mask
    while oids[at] != 0:
        if oids[at] == oid:
            return values[at]
        at = (at + 1) & mask
    return np.int64(-1)


@numba.njit(cache=True)
def put(oids, values, oid, value):  # type: ignore[no-untyped-def]
    """Sets a relation's entry in the open-addressing table; the table is at most half full."""
    mask = oids.shape[0] - 1
    at = (oid * 2654435761) & mask
    while oids[at] != 0 and oids[at] != oid:
        at = (at + 1) & mask
    oids[at] = oid
    values[at] = value


@numba.njit(cache=True, inline="always")
def _emit(out, k, new, old, limit, entry, operation, image, position, ordinal, xid, time):  # type: ignore[no-untyped-def]
    out[NEW, k] = new
    out[OLD, k] = old
    out[LIMIT, k] = limit
    out[ENTRY, k] = entry
    out[OPERATION, k] = operation
    out[IMAGE, k] = image
    out[POSITION, k] = position
    out[ORDINAL, k] = ordinal
    out[XID, k] = xid
    out[COMMITTED_AT, k] = time
    return k + 1


@numba.njit(cache=True, inline="always")
def is_mine(h, bucket, buckets):  # type: ignore[no-untyped-def]
    """Whether a key with that hash belongs to the bucket."""
    return ((h ^ (h >> np.uint64(29))) % np.uint64(buckets)) == np.uint64(bucket)


@numba.njit(cache=True)
def _is_gone(gone, low, high, part):  # type: ignore[no-untyped-def]
    """Whether a subtransaction is among those of gone[low:high], which are sorted."""
    while low < high:
        middle = (low + high) // 2
        if gone[middle] == part:
            return True
        if gone[middle] < part:
            low = middle + 1
        else:
            high = middle
    return False


@numba.njit(cache=True)
def rolled_back(b, start, end, out):  # type: ignore[no-untyped-def]
    """The subtransactions that a last piece names as rolled back, into `out`; returns how many there are."""
    k = 0
    pos = start
    while end - pos >= ABORT_BYTES and b[pos] == 100:
        following = pos + 1 + u32(b, pos + 1)
        if following <= pos or following > end:
            break
        if b[pos + 5] == 119 and b[pos + 30] == 65:
            if k < out.shape[0]:
                out[k] = u32(b, pos + 35)
            k += 1
        pos = following
    return k


@numba.njit(cache=True, nogil=True)
def scan(  # type: ignore[no-untyped-def]
    b, slices, gone, messages, bucket, buckets, oids, values, keys, key_counts, taken, change_at, change_oid, change_entry, out
):
    """Rows of one bucket, in log order, into `out`; returns how many, or an error and the byte it stands at.

    `messages` is the entry of logical messages, -1 to pass over them.
    """
    k = 0
    change = 0
    room = out.shape[1]
    for s in range(slices.shape[0]):
        pos = slices[s, START]
        end = slices[s, END]
        position = slices[s, PIECE_POSITION]
        xid = slices[s, PIECE_XID]
        time = slices[s, PIECE_TIME]
        ordinal = slices[s, PIECE_ORDINAL]
        opened = k
        current_oid = np.int64(-1)
        current = np.int64(-1)
        streamed = slices[s, STREAMED] != 0
        part = np.int64(-1)
        is_gone = False
        while pos < end:
            if end - pos < 6 or b[pos] != 100:
                return BAD_FRAME, pos
            limit = pos + 1 + u32(b, pos + 1)
            if limit > end or limit - pos < 6:
                return BAD_FRAME, pos
            if b[pos + 5] != 119:
                pos = limit
                continue
            p = pos + 30
            if limit - p < 1:
                return BAD_FRAME, pos
            op = b[p]
            if streamed:
                if op == 83 or op == 69 or op == 99 or op == 65:
                    pos = limit
                    continue
                if limit - p < 5:
                    return BAD_FRAME, pos
                if u32(b, p + 1) != part and op != 82:
                    part = u32(b, p + 1)
                    is_gone = _is_gone(gone, slices[s, GONE_FROM], slices[s, GONE_TO], part)
                if is_gone and op != 82:
                    pos = limit
                    continue
                p += 4
            if op == 73 or op == 85 or op == 68:
                if limit - p < 8:
                    return BAD_TUPLE, pos
                if k + 2 > room:
                    return TOO_MANY, pos
                ordinal += 1
                oid = u32(b, p + 1)
                if oid != current_oid:
                    current = _find(oids, values, oid)
                    current_oid = oid
                    if current < 0:
                        return NO_RELATION, pos
                if taken[current]:
                    n = key_counts[current]
                    q = p + 6
                    if op == 85 and b[p + 5] != 78:
                        image = 1 if b[p + 5] == 75 else 2
                        new = skip(b, q, limit)
                        if new < 0 or new + 3 > limit or b[new] != 78:
                            return BAD_TUPLE, pos
                        new += 1
                        same = n == 0 or same_key(b, q, new, limit, keys[current], n)
                        h = h_old = np.uint64(1)
                        if buckets > 1 and n > 0:
                            h = key_hash(b, new, limit, q, keys[current], n, FNV ^ np.uint64(oid))
                            h_old = h if same else key_hash(b, q, limit, np.int64(0), keys[current], n, FNV ^ np.uint64(oid))
                            if h == 0 or h_old == 0:
                                return BAD_TUPLE, pos
                        elif buckets > 1:
                            h = h_old = np.uint64(oid)
                        if not same and (buckets == 1 or is_mine(h_old, bucket, buckets)):
                            k = _emit(out, k, q, 0, limit, current, 7, image, position, ordinal, xid, time)
                        if buckets == 1 or is_mine(h, bucket, buckets):
                            k = _emit(out, k, new, q, limit, current, 2 if same else 8, image, position, ordinal, xid, time)
                    else:
                        mine = buckets == 1
                        if not mine:
                            h = np.uint64(oid)
                            if n > 0:
                                if q + 2 > limit:
                                    return BAD_TUPLE, pos
                                h = key_hash(b, q, limit, np.int64(0), keys[current], n, FNV ^ np.uint64(oid))
                                if h == 0:
                                    return BAD_TUPLE, pos
                            mine = is_mine(h, bucket, buckets)
                        if mine:
                            if op == 73:
                                k = _emit(out, k, q, 0, limit, current, 1, 0, position, ordinal, xid, time)
                            elif op == 85:
                                k = _emit(out, k, q, 0, limit, current, 2, 0, position, ordinal, xid, time)
                            else:
                                image = 1 if b[p + 5] == 75 else 2
                                k = _emit(out, k, q, 0, limit, current, 3, image, position, ordinal, xid, time)
            elif op == 66:
                if limit - p < 21:
                    return BAD_FRAME, pos
                time = u64(b, p + 9) + _EPOCH_2000
                xid = u32(b, p + 17)
                ordinal = 0
                opened = k
            elif op == 67:
                if limit - p < 26:
                    return BAD_FRAME, pos
                position = u64(b, p + 10)
                for x in range(opened, k):
                    out[POSITION, x] = position
                opened = k
            elif op == 82:
                # The relation in force is found by byte position: only descriptions with an entry of their own change anything.
                while change < change_at.shape[0] and change_at[change] < pos:
                    change += 1
                if change < change_at.shape[0] and change_at[change] == pos:
                    put(oids, values, change_oid[change], change_entry[change])
                    change += 1
                    current_oid = np.int64(-1)
            elif op == 77:
                if limit - p < 15:
                    return BAD_TUPLE, pos
                if k + 1 > room:
                    return TOO_MANY, pos
                if b[p + 1] & 1:
                    ordinal += 1
                    if messages >= 0 and taken[messages] and bucket == 0:
                        k = _emit(out, k, p, 0, limit, messages, 6, 0, position, ordinal, xid, time)
                elif messages >= 0 and taken[messages] and bucket == 0:
                    sent = u64(b, pos + 22) + _EPOCH_2000
                    k = _emit(out, k, p, 0, limit, messages, 6, 0, u64(b, p + 2), 1, 0, sent)
                    opened = k
            elif op == 84:
                if limit - p < 6:
                    return BAD_TUPLE, pos
                count = u32(b, p + 1)
                if p + 6 + 4 * count > limit:
                    return BAD_TUPLE, pos
                if k + count > room:
                    return TOO_MANY, pos
                for x in range(count):
                    ordinal += 1
                    truncated = _find(oids, values, u32(b, p + 6 + 4 * x))
                    if truncated < 0:
                        return NO_RELATION, pos
                    if taken[truncated]:
                        k = _emit(out, k, 0, 0, limit, truncated, 4, 0, position, ordinal, xid, time)
            pos = limit
    return k, np.int64(0)


def table_of(relations: dict[int, int]) -> tuple[Any, Any]:
    """The open-addressing table for relation → entry number, with room for twice as many."""
    size = 16
    while size < 4 * (len(relations) + 4):
        size *= 2
    oids, values = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for oid, entry in relations.items():
        put(oids, values, oid, entry)
    return oids, values


def warm() -> None:
    """Loads or compiles the kernels for the arrays that the decoder uses."""
    b = np.zeros(64, np.uint8)
    oids, values = table_of({1: 0})
    keys, counts, taken = np.zeros((1, MAX_KEY), np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_)
    none = np.zeros(0, np.int64)
    scan(
        b,
        np.zeros((0, INPUTS), np.int64),
        none,
        -1,
        0,
        1,
        oids,
        values,
        keys,
        counts,
        taken,
        none,
        none,
        none,
        np.zeros((OUTPUTS, 1), np.int64),
    )
    rolled_back(b, 0, 0, none)
