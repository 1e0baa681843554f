"""Rows of COPY in text form: where each value stands, its escapes undone in place, compiled."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def locate(b, kind, offset, length):  # type: ignore[no-untyped-def]
    """Kind (`t` or `n`), byte and length of every column of every row; 0 when all fit, else the number of the bad row, from 1."""
    columns, rows = kind.shape
    end = len(b)
    p = 0
    for i in range(rows):
        for j in range(columns):
            start = write = p
            null = False
            while p < end and b[p] != 9 and b[p] != 10:
                c = b[p]
                if c == 92:
                    p += 1
                    if p >= end:
                        return i + 1
                    c = b[p]
                    if c == 78:
                        null = True
                    elif c == 98:
                        c = 8
                    elif c == 102:
                        c = 12
                    elif c == 110:
                        c = 10
                    elif c == 114:
                        c = 13
                    elif c == 116:
                        c = 9
                    elif c == 118:
                        c = 11
                b[write] = c
                write += 1
                p += 1
            if p >= end or b[p] != (10 if j == columns - 1 else 9):
                return i + 1
            p += 1
            kind[j, i] = 110 if null else 116
            offset[j, i] = start
            length[j, i] = 0 if null else write - start
    return 0 if p == end else rows + 1


def warm() -> None:
    """Loads or compiles the loop for the arrays that a re-select uses."""
    locate(np.zeros(0, np.uint8), np.zeros((1, 0), np.uint8), np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64))
