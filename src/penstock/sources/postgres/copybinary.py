"""The compiled reading of COPY's binary format: rows of a raw stream located field by field; nothing in it is escaped."""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from penstock.sources.postgres.copytext import BROKEN, MORE, OTHER
from penstock.sources.postgres.values.words import big16, big32, big64

END: Final = 3
"""The trailer has been read: there are no more rows."""
_HEADER: Final = 19
_SIGNATURE: Final = 0x5047434F50590AFF
"""Where a row has its number of columns, the header has `PG`, which would be 20,551 of them."""


@numba.njit(cache=True, nogil=True)
def split(b, pos, end, row, columns, offset, length):  # type: ignore[no-untyped-def]
    """Locates the rows of whole frames in b[pos:end], from line `row` of the matrices on; a NULL has the length -1.

    Returns how many rows there are now, the position, and why it stopped there.
    """
    room = offset.shape[1]
    while True:
        if end - pos < 5:
            return row, pos, MORE
        limit = pos + 1 + (np.int64(big32(b, pos + 1)) & 0xFFFFFFFF)
        if b[pos] != 100:
            return row, pos, OTHER
        if limit > end:
            return row, pos, MORE
        p = pos + 5
        if limit - p >= _HEADER + 2 and big64(b, p) == _SIGNATURE:
            if big32(b, p + 11) != 0 or big32(b, p + 15) != 0:
                return row, pos, BROKEN
            p += _HEADER
        if limit - p < 2:
            return row, pos, BROKEN
        count = big16(b, p)
        p += 2
        if count == -1 and p == limit:
            return row, limit, END
        if count != columns or row >= room:
            return row, pos, BROKEN
        for j in range(columns):
            if limit - p < 4:
                return row, pos, BROKEN
            size = big32(b, p)
            p += 4
            offset[j, row] = p
            length[j, row] = size
            if size > 0:
                if size > limit - p:
                    return row, pos, BROKEN
                p += size
            elif size < -1:
                return row, pos, BROKEN
        if p != limit:
            return row, pos, BROKEN
        row += 1
        pos = limit


def warm() -> None:
    """Loads or compiles the kernel."""
    cells = (1, 0)
    split(np.zeros(8, np.uint8), 0, 0, 0, 1, np.zeros(cells, np.int64), np.zeros(cells, np.int32))
