"""Tables that the log describes again: something may have happened to their rows that it does not show, such as a rewrite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numba
import numpy as np

from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice, SliceFlag
from penstock.sources.postgres.walk import u32, u64

_SHORTEST = 35
"""Bytes that a frame with a RELATION message has at least."""


@numba.njit(cache=True, nogil=True)
def _descriptions(b, pos, end, position, skip, oids, positions):  # type: ignore[no-untyped-def]
    """The RELATION messages between two bytes and the commit positions of their transactions; returns how many.

    `position` is that of a piece, 0 when the bytes hold whole transactions; `skip` bytes stand before a message's own fields.
    """
    count = opened = 0
    while pos + 31 <= end:
        limit = pos + 1 + u32(b, pos + 1)
        if b[pos] != 100 or limit > end or limit <= pos:
            break
        if b[pos + 5] == 119:
            p = pos + 30
            if b[p] == 82 and limit - p >= 5 + skip and count < len(oids):
                oids[count] = u32(b, p + 1 + skip)
                positions[count] = position
                count += 1
            elif b[p] == 67 and position == 0 and limit - p >= 18:
                positions[opened:count] = u64(b, p + 10)
                opened = count
        pos = limit
    return count


def retold(journal: SliceReader, slices: Sequence[Slice]) -> dict[str, list[int]]:
    """By table, the commit positions of transactions in which it is described again, in order."""
    found: dict[str, set[int]] = defaultdict(set)
    for s in slices:
        if s.flags & SliceFlag.RETOLD:
            b, (start,) = journal.read([s])
            oids, positions = np.zeros((2, s.size // _SHORTEST + 1), np.int64)
            piece = s.last if s.flags & SliceFlag.PIECE else 0
            skip = 4 if s.flags & SliceFlag.STREAMED else 0
            count = _descriptions(b, start, start + s.size, piece, skip, oids, positions)
            for oid, position in zip(oids[:count].tolist(), positions[:count].tolist(), strict=True):
                found[str(oid)].add(position)
    return {oid: sorted(places) for oid, places in found.items()}


def warm() -> None:
    """Loads or compiles the loop for the arrays that are used."""
    none = np.zeros(0, np.int64)
    _descriptions(np.zeros(0, np.uint8), 0, 0, 0, 0, none, none)
