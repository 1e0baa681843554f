"""The compiled location of cells: kind, byte and length of every column of every tuple that the scan has found."""

from __future__ import annotations

import numba
import numpy as np

from penstock.sources.postgres.tuples import following


@numba.njit(cache=True, nogil=True)
def locate(b, at, old, image, limit, columns, kind, offset, length):  # type: ignore[no-untyped-def]
    """Fills kind, offset and length, a line per column; 0 when every tuple fits, else the number of the bad row, from 1.

    A column that the new tuple leaves unchanged is taken from the old one where that has it.
    """
    for i in range(at.shape[0]):
        p = at[i]
        if p == 0:
            for j in range(columns):
                kind[j, i] = 110
                offset[j, i] = 0
                length[j, i] = 0
            continue
        stop = limit[i]
        if p + 2 > stop or ((np.int64(b[p]) << 8) | b[p + 1]) != columns:
            return i + 1
        p += 2
        missing = False
        for j in range(columns):
            after = following(b, p, stop)
            if after < 0:
                return i + 1
            kind[j, i] = b[p]
            missing = missing or b[p] == 117
            valued = after > p + 1
            offset[j, i] = p + 5 if valued else p
            length[j, i] = after - p - 5 if valued else 0
            p = after
        if missing and old[i] > 0:
            p = old[i]
            if p + 2 > stop or ((np.int64(b[p]) << 8) | b[p + 1]) != columns:
                return i + 1
            p += 2
            for j in range(columns):
                after = following(b, p, stop)
                if after < 0:
                    return i + 1
                valued = after > p + 1
                if kind[j, i] == 117 and (valued or (b[p] == 110 and image[i] == 2)):
                    kind[j, i] = b[p]
                    offset[j, i] = p + 5 if valued else p
                    length[j, i] = after - p - 5 if valued else 0
                p = after
    return 0


def warm() -> None:
    """Loads or compiles the kernel for the arrays that the decoder uses."""
    at = np.zeros((1, 1), np.int64)[:, :0][0]
    cells = (1, 0)
    kind, offset, length = np.zeros(cells, np.uint8), np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    locate(np.zeros(64, np.uint8), at, at, at, at, 1, kind, offset, length)
