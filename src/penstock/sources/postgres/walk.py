"""The compiled walk over the frames that a walsender sends: where transactions begin and end, and what needs a look.

It never reads a row. A frame is `d`, its length, then `w` with a 24-byte head and one pgoutput message, or `k`, a keepalive.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

MORE: Final = 0
"""The rest of the buffer is not a whole frame yet."""
RELATION: Final = 1
"""A RELATION message stands at the position."""
OTHER: Final = 2
"""A frame that is not CopyData stands at the position."""
CUT: Final = 3
"""The finished transactions fill a slice."""
PIECE: Final = 4
"""The open transaction fills a slice."""
HUGE: Final = 5
"""A row's frame larger than the buffer should hold stands at the position, not yet whole."""
LAST_PIECE: Final = 6
"""A transaction of which pieces are already written has committed."""
BROKEN: Final = 7
"""The bytes at the position are not the protocol."""

# Fields of the walk's state, kept between calls.
RUN_START: Final = 0
RUN_END: Final = 1
IN_TRANSACTION: Final = 2
TRANSACTION_START: Final = 3
RUN_CHANGES: Final = 4
RUN_TRANSACTIONS: Final = 5
RUN_FIRST: Final = 6
RUN_LAST: Final = 7
ORDINAL: Final = 8
XID: Final = 9
COMMITTED_AT: Final = 10
RUN_FLAGS: Final = 11
TRANSACTION_FLAGS: Final = 12
PIECES: Final = 13
PIECE_ORDINAL: Final = 14
KEEPALIVE: Final = 15
REPLY_WANTED: Final = 16
MESSAGES: Final = 17
FIELDS: Final = 18

KEY_CHANGE: Final = 4
TRUNCATE: Final = 8
_EPOCH_2000: Final = 946_684_800_000_000


@numba.njit(cache=True, inline="always")
def u32(b, p):  # type: ignore[no-untyped-def]
    """A big-endian 32-bit number."""
    return (np.int64(b[p]) << 24) | (np.int64(b[p + 1]) << 16) | (np.int64(b[p + 2]) << 8) | np.int64(b[p + 3])


@numba.njit(cache=True, inline="always")
def u64(b, p):  # type: ignore[no-untyped-def]
    """A big-endian 64-bit number."""
    return (u32(b, p) << 32) | u32(b, p + 4)


@numba.njit(cache=True, nogil=True)
def walk(b, pos, end, st, slice_bytes, huge_bytes):  # type: ignore[no-untyped-def]
    """Walks whole frames of b[pos:end]; returns the position and why it stopped. Frames before the position are counted."""
    while True:
        if end - pos < 5:
            return pos, MORE
        if b[pos] != 100:
            return pos, OTHER
        length = u32(b, pos + 1)
        following = pos + 1 + length
        if length < 5 or length > (1 << 31):
            return pos, BROKEN
        if following > end:
            if length > huge_bytes and end - pos >= 36 and b[pos + 5] == 119 and st[IN_TRANSACTION]:
                return pos, HUGE
            return pos, MORE
        kind = b[pos + 5]
        if kind == 107:
            if length < 22:
                return pos, BROKEN
            # A keepalive between transactions vouches for everything before its position; one inside does not.
            if not st[IN_TRANSACTION]:
                st[KEEPALIVE] = max(st[KEEPALIVE], u64(b, pos + 6))
            if b[pos + 22]:
                st[REPLY_WANTED] = 1
        elif kind == 119:
            if length < 30:
                return pos, BROKEN
            p = pos + 30
            op = b[p]
            st[MESSAGES] += 1
            if op == 73 or op == 85 or op == 68:
                st[ORDINAL] += 1
                if op == 85 and b[p + 5] == 75:
                    st[TRANSACTION_FLAGS] |= KEY_CHANGE
            elif op == 66:
                st[IN_TRANSACTION] = 1
                st[TRANSACTION_START] = pos
                st[ORDINAL] = 0
                st[PIECE_ORDINAL] = 0
                st[TRANSACTION_FLAGS] = 0
                st[COMMITTED_AT] = u64(b, p + 9) + _EPOCH_2000
                st[XID] = u32(b, p + 17)
            elif op == 67:
                st[IN_TRANSACTION] = 0
                position = u64(b, p + 10)
                if st[RUN_TRANSACTIONS] == 0:
                    st[RUN_FIRST] = position
                st[RUN_LAST] = position
                st[RUN_TRANSACTIONS] += 1
                st[RUN_CHANGES] += st[ORDINAL] - st[PIECE_ORDINAL]
                st[RUN_FLAGS] |= st[TRANSACTION_FLAGS]
                st[RUN_END] = following
                if st[PIECES]:
                    return following, LAST_PIECE
            elif op == 82:
                return pos, RELATION
            elif op == 84:
                st[ORDINAL] += u32(b, p + 1)
                st[TRANSACTION_FLAGS] |= TRUNCATE
        else:
            return pos, BROKEN
        pos = following
        if st[RUN_END] - st[RUN_START] >= slice_bytes:
            return pos, CUT
        if st[IN_TRANSACTION] and pos - st[TRANSACTION_START] >= slice_bytes:
            return pos, PIECE


def new_state() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The state of a walk that has seen nothing."""
    return np.zeros(FIELDS, np.int64)


def warm() -> None:
    """Loads or compiles the walk for the arrays that capture uses."""
    walk(np.zeros(8, np.uint8), 0, 0, new_state(), 1, 1)
