"""The compiled reading of COPY's text format: rows of a raw stream located cell by cell, escapes undone where they stand."""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from penstock.sources.postgres.values.words import first_bit, first_byte, marks, word
from penstock.sources.postgres.walk import u32

MORE: Final = 0
"""The rest of the bytes is not a whole frame yet."""
OTHER: Final = 1
"""A frame that is no row stands at the position."""
BROKEN: Final = 2
"""The bytes at the position are no row of that many columns."""

_NULL: Final = 110
_TEXT: Final = 116
_ONES = np.uint64(0x0101010101010101)
_HIGHEST = np.uint64(0x8080808080808080)
_TABS = np.uint64(0x0909090909090909)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)


@numba.njit(cache=True, inline="always")
def _unescaped(c):  # type: ignore[no-untyped-def]
    """The byte that a backslash and `c` stand for."""
    if c == 110:
        return np.uint8(10)
    if c == 116:
        return np.uint8(9)
    if c == 114:
        return np.uint8(13)
    if c == 98:
        return np.uint8(8)
    if c == 102:
        return np.uint8(12)
    if c == 118:
        return np.uint8(11)
    return np.uint8(c)


@numba.njit(cache=True)
def _unescape(b, p, stop):  # type: ignore[no-untyped-def]
    """Undoes the escapes of the cell whose first backslash is at p; where its text and where it itself ends, -1 if nowhere."""
    w = p
    while p < stop and b[p] != 9:
        if b[p] == 92:
            p += 1
            if p >= stop:
                return np.int64(-1), np.int64(-1)
            b[w] = _unescaped(b[p])
        else:
            b[w] = b[p]
        p += 1
        w += 1
    return w, p


@numba.njit(cache=True, inline="always")
def _cell_end(b, p, stop):  # type: ignore[no-untyped-def]
    """The first tab or backslash from p on, or `stop`."""
    while p + 8 <= stop:
        w = word(b, p)
        tabs, slashes = w ^ _TABS, w ^ _SLASHES
        # A byte that is zero has its highest bit here; above the first one others may have it too.
        marks = (((tabs - _ONES) & ~tabs) | ((slashes - _ONES) & ~slashes)) & _HIGHEST
        if marks != 0:
            return p + first_byte(marks)
        p += 8
    while p < stop and b[p] != 9 and b[p] != 92:
        p += 1
    return p


@numba.njit(cache=True)
def _row(b, p, stop, row, columns, kind, offset, length):  # type: ignore[no-untyped-def]
    """Locates the cells of the row b[p:stop]; false when it has another number of them."""
    for j in range(columns):
        if j > 0:
            if p >= stop or b[p] != 9:
                return False
            p += 1
        start = p
        if p + 2 <= stop and b[p] == 92 and b[p + 1] == 78 and (p + 2 == stop or b[p + 2] == 9):
            kind[j, row] = _NULL
            offset[j, row] = p
            length[j, row] = 0
            p += 2
            continue
        p = _cell_end(b, p, stop)
        w = p
        if p < stop and b[p] == 92:
            w, p = _unescape(b, p, stop)
            if p < 0:
                return False
        kind[j, row] = _TEXT
        offset[j, row] = start
        length[j, row] = w - start
    return p == stop


@numba.njit(cache=True)
def _plain_row(b, p, stop, row, columns, kind, offset, length):  # type: ignore[no-untyped-def]
    """Locates the cells of the row b[p:stop] by 64 bytes at a time; false when it holds an escape, or is none.

    The 64 bytes from `stop` on must be there. A row of ten columns takes half as long as cell by cell.
    """
    start, j = p, 0
    found = marks(b, p, np.uint8(9), np.uint8(92))
    while True:
        while found == 0:
            p += 64
            if p >= stop:
                break
            found = marks(b, p, np.uint8(9), np.uint8(92))
        end = stop
        if found != 0:
            end = min(stop, p + first_bit(found))
            found &= found - np.uint64(1)
        if end < stop and b[end] == 92:
            null = end == start and b[end + 1] == 78
            end += 2
            if not null or end > stop or (end < stop and b[end] != 9):
                return False
            kind[j, row] = _NULL
            offset[j, row] = start
            length[j, row] = 0
            if end < stop:
                # The mark of the tab.
                if found == 0:
                    p += 64
                    found = marks(b, p, np.uint8(9), np.uint8(92))
                found &= found - np.uint64(1)
        else:
            kind[j, row] = _TEXT
            offset[j, row] = start
            length[j, row] = end - start
        j += 1
        if end == stop or j == columns:
            return end == stop and j == columns
        start = end + 1


@numba.njit(cache=True, nogil=True)
def split(b, pos, end, row, columns, kind, offset, length):  # type: ignore[no-untyped-def]
    """Locates the rows of whole frames in b[pos:end], from line `row` of the matrices on.

    Returns how many rows there are now, the position, and why it stopped there. Bytes before the position are changed.
    """
    room = kind.shape[1]
    while True:
        if end - pos < 5:
            return row, pos, MORE
        limit = pos + 1 + u32(b, pos + 1)
        if b[pos] != 100:
            return row, pos, OTHER
        if limit > end:
            return row, pos, MORE
        stop = limit - 1
        if stop < pos + 5 or b[stop] != 10 or row >= room:
            return row, pos, BROKEN
        plain = columns > 0 and stop + 128 <= b.shape[0]
        plain = plain and _plain_row(b, pos + 5, stop, row, columns, kind, offset, length)
        if not plain and not _row(b, pos + 5, stop, row, columns, kind, offset, length):
            return row, pos, BROKEN
        row += 1
        pos = limit


@numba.njit(cache=True, nogil=True)
def lines(b, kind, offset, length):  # type: ignore[no-untyped-def]
    """Locates rows that stand one behind the other without frames; 0 when all fit, else the number of the bad row, from 1."""
    columns, rows = kind.shape
    p = 0
    for i in range(rows):
        stop = p
        while stop < b.shape[0] and b[stop] != 10:
            stop += 1
        if stop == b.shape[0] or not _row(b, p, stop, i, columns, kind, offset, length):
            return i + 1
        p = stop + 1
    return 0 if p == b.shape[0] else rows + 1


def warm() -> None:
    """Loads or compiles the kernels for the arrays that a snapshot and a re-select use."""
    b, cells = np.zeros(0, np.uint8), (1, 0)
    kind, offset, length = np.zeros(cells, np.uint8), np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    split(b, 0, 0, 0, 1, kind, offset, length)
    lines(b, kind, offset, length)
