"""The memory's inner loop: which earlier row of the same key carried the value that a row leaves out; numbers only, compiled."""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

from penstock.core.batch import Op

KNOWN: Final = 0
GAP: Final = 1
UNUSABLE: Final = 2
"""A cell whose exact value does not stand in its array."""

UNKNOWN: Final = -1
"""No earlier row carried the value. From -2 downwards: place 0, 1 … of the memory. From 0 upwards: a row of the batch."""

_INSERT, _DELETE, _TRUNCATE, _SNAPSHOT = int(Op.INSERT), int(Op.DELETE), int(Op.TRUNCATE), int(Op.SNAPSHOT)
_LEAVE, _ENTER = int(Op.LEAVE), int(Op.ENTER)


@numba.njit(cache=True, inline="always")
def _is_pair(op, position, ordinal, leave, enter):  # type: ignore[no-untyped-def]
    if leave < 0 or enter >= len(op) or op[leave] != _LEAVE or op[enter] != _ENTER:
        return False
    return position[leave] == position[enter] and ordinal[leave] == ordinal[enter]


@numba.njit(cache=True, nogil=True)
def walk(op, position, ordinal, codes, cells, doubts, state, found, last):  # type: ignore[no-untyped-def]
    """Takes every row's effect into `state` (key, column) and notes in `found` (row, column) where a gap's value is.

    `last` gets the last row that touched each key. Nothing is taken into or out of the transactions at the positions `doubts`,
    nor across them.
    """
    width = cells.shape[1]
    doubt = 0
    for row in range(len(op)):
        kind = op[row]
        if doubt < len(doubts) and doubts[doubt] <= position[row]:
            state[:, :] = UNKNOWN
            while doubt < len(doubts) and doubts[doubt] <= position[row]:
                doubt += 1
        if doubt > 0 and doubts[doubt - 1] == position[row]:
            if kind != _TRUNCATE:
                last[codes[row]] = row
            continue
        if kind == _TRUNCATE:
            state[:, :] = UNKNOWN
            continue
        key = codes[row]
        last[key] = row
        if kind == _LEAVE and _is_pair(op, position, ordinal, row, row + 1):
            # The row takes its values along to its new key.
            enter = codes[row + 1]
            if enter != key:
                for column in range(width):
                    state[enter, column] = state[key, column]
                    state[key, column] = UNKNOWN
            continue
        if kind == _ENTER and not _is_pair(op, position, ordinal, row - 1, row):
            state[key, :] = UNKNOWN
        if kind in (_INSERT, _SNAPSHOT, _DELETE, _LEAVE):
            state[key, :] = UNKNOWN
        if kind in (_DELETE, _LEAVE):
            continue
        for column in range(width):
            cell = cells[row, column]
            if cell == GAP:
                found[row, column] = state[key, column]
            else:
                state[key, column] = row if cell == KNOWN else UNKNOWN


def warm() -> None:
    """Loads or compiles the loop for the arrays that the memory uses."""
    none, square = np.zeros(0, np.int64), np.zeros((0, 1), np.int64)
    walk(np.zeros(0, np.uint8), none, none, none, np.zeros((0, 1), np.uint8), none, square, square, none)
