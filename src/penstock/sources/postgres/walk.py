"""The compiled walk over the frames that a walsender sends: where transactions begin and end, and what needs a look.

It never reads a row. A frame is `d`, its length, then `w` with a 24-byte head and one pgoutput message, or `k`, a keepalive.
A big transaction may come in chunks before it commits (STREAM START to STREAM STOP), other transactions in between; inside a
chunk every message has the id of its subtransaction after the type byte.
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
"""A row's or message's frame larger than the buffer should hold stands at the position, not yet whole."""
LAST_PIECE: Final = 6
"""A transaction of which pieces are already written has committed."""
BROKEN: Final = 7
"""The bytes at the position are not the protocol."""
STREAM_START: Final = 8
"""A chunk of a streamed transaction begins at the position."""
STREAM_STOP: Final = 9
"""The chunk has ended before the position."""
STREAM_COMMIT: Final = 10
STREAM_ABORT: Final = 11
SHARES_FULL: Final = 12
"""The shares of subtransactions have to be taken before the walk can go on."""

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
STREAM: Final = 18
"""The transaction whose chunk is being read, else 0."""
SHARES: Final = 19
"""How many shares are filled."""
FIELDS: Final = 20

MOST_SHARES: Final = 4096

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


@numba.njit(cache=True, inline="always")
def _least(op):  # type: ignore[no-untyped-def]
    """Bytes that a message of this kind has at least, without the id that streamed ones carry; 0 for kinds that end the walk."""
    if op == 73 or op == 85 or op == 68:
        return 8
    if op == 66:
        return 21
    if op == 67:
        return 26
    if op == 84:
        return 6
    if op == 77:
        return 15
    if op == 83 or op == 69:
        return 1
    if op == 99:
        return 30
    if op == 65:
        return 9
    return 1


@numba.njit(cache=True, inline="always")
def _end_transaction(st, position, changes, following):  # type: ignore[no-untyped-def]
    if st[RUN_TRANSACTIONS] == 0:
        st[RUN_FIRST] = position
    st[RUN_LAST] = position
    st[RUN_TRANSACTIONS] += 1
    st[RUN_CHANGES] += changes
    st[RUN_END] = following


@numba.njit(cache=True, nogil=True)
def walk(b, pos, end, st, shares, slice_bytes, huge_bytes):  # type: ignore[no-untyped-def]
    """Walks whole frames of b[pos:end]; returns the position and why it stopped. Frames before the position are counted.

    `shares` collects, in a chunk, how many changes each subtransaction has, run by run.
    """
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
            if length > huge_bytes and end - pos >= 48:
                op = b[pos + 30]
                if b[pos + 5] == 119 and (op == 77 or (st[IN_TRANSACTION] and (op == 73 or op == 85 or op == 68))):
                    return pos, HUGE
                return pos, BROKEN
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
            if following - p < _least(op):
                return pos, BROKEN
            changes = np.int64(0)
            if op == 73 or op == 85 or op == 68 or op == 77:
                changes = np.int64(1)
            elif op == 84:
                if following - p < (10 if st[STREAM] else 6):
                    return pos, BROKEN
                changes = u32(b, p + (5 if st[STREAM] else 1))
                if 4 * changes > following - p - (10 if st[STREAM] else 6):
                    return pos, BROKEN
            if changes and st[STREAM]:
                if following - p < 12:
                    return pos, BROKEN
                share = st[SHARES]
                part = u32(b, p + 1)
                if share == 0 or shares[share - 1, 0] != part:
                    if share == shares.shape[0]:
                        return pos, SHARES_FULL
                    shares[share, 0] = part
                    shares[share, 1] = 0
                    share += 1
                    st[SHARES] = share
                shares[share - 1, 1] += changes
                p += 4
            st[MESSAGES] += 1
            if op == 73 or op == 85 or op == 68:
                if not st[IN_TRANSACTION]:
                    return pos, BROKEN
                st[ORDINAL] += 1
                if op == 85 and b[p + 5] == 75:
                    st[TRANSACTION_FLAGS] |= KEY_CHANGE
            elif op == 66:
                if st[IN_TRANSACTION]:
                    return pos, BROKEN
                st[IN_TRANSACTION] = 1
                st[TRANSACTION_START] = pos
                st[ORDINAL] = 0
                st[PIECE_ORDINAL] = 0
                st[TRANSACTION_FLAGS] = 0
                st[COMMITTED_AT] = u64(b, p + 9) + _EPOCH_2000
                st[XID] = u32(b, p + 17)
            elif op == 67:
                # A position has 63 bits here; no server has written half of 2^64 bytes.
                if st[STREAM] or not st[IN_TRANSACTION] or b[p + 10] > 127:
                    return pos, BROKEN
                st[IN_TRANSACTION] = 0
                _end_transaction(st, u64(b, p + 10), st[ORDINAL] - st[PIECE_ORDINAL], following)
                st[RUN_FLAGS] |= st[TRANSACTION_FLAGS]
                if st[PIECES]:
                    return following, LAST_PIECE
            elif op == 82:
                st[MESSAGES] -= 1
                return pos, RELATION
            elif op == 84:
                if not st[IN_TRANSACTION]:
                    return pos, BROKEN
                st[ORDINAL] += changes
                st[TRANSACTION_FLAGS] |= TRUNCATE
            elif op == 77:
                if st[IN_TRANSACTION]:
                    st[ORDINAL] += 1
                elif b[p + 2] > 127:
                    return pos, BROKEN
                else:
                    # Outside of transactions it is one of its own. Its position is where its record ends and the next begins:
                    # a byte more, confirmed to the server, and a commit record that stands there would be passed over.
                    _end_transaction(st, u64(b, p + 2), 1, following)
            elif op == 83 or op == 69 or op == 99 or op == 65:
                if (op == 69) != (st[STREAM] != 0) or (op != 69 and (st[IN_TRANSACTION] or following - p < 5)):
                    return pos, BROKEN
                if op == 83:
                    return pos, STREAM_START
                if op == 69:
                    return following, STREAM_STOP
                return pos, STREAM_COMMIT if op == 99 else STREAM_ABORT
        else:
            return pos, BROKEN
        pos = following
        if st[RUN_END] - st[RUN_START] >= slice_bytes:
            return pos, CUT
        if st[IN_TRANSACTION] and pos - st[TRANSACTION_START] >= slice_bytes:
            return pos, PIECE


def unix_time(server: int) -> int:
    """A time of the protocol in µs since 1970."""
    return server + _EPOCH_2000


def new_state() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The state of a walk that has seen nothing."""
    return np.zeros(FIELDS, np.int64)


def new_shares() -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Room for the shares of subtransactions: id and number of changes."""
    return np.zeros((MOST_SHARES, 2), np.int64)


def warm() -> None:
    """Loads or compiles the walk for the arrays that capture uses."""
    walk(np.zeros(8, np.uint8), 0, 0, new_state(), new_shares(), 1, 1)
