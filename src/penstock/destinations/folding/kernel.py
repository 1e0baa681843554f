"""The fold's inner loop: numbers of rows and keys, no values, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.batch import Op
from penstock.destinations.folding.outcome import FROM_ORIGIN, NO_VALUE, Outcome, Rows
from penstock.formats.kernels import compiled

_UPDATE, _DELETE, _TRUNCATE = int(Op.UPDATE), int(Op.DELETE), int(Op.TRUNCATE)
_LEAVE, _ENTER = int(Op.LEAVE), int(Op.ENTER)

# A key's slot: what is known of its row at this point of the log. The cells' sources follow from _CELLS on.
_STATE, _ERA, _LAST, _ORIGIN, _DEPARTURE, _CELLS = 0, 1, 2, 3, 4, 5
_UNTOUCHED, _LIVE, _GONE = 0, 1, 2


def fold_rows(op: Any, position: Any, ordinal: Any, codes: Any, enters: Any, count: int, unchanged: Any) -> Outcome:
    """Folds rows whose keys are the first `len(op)` of `codes`; `enters` says where in `codes` the old key of an ENTER is.

    `count` is the number of distinct codes; `unchanged` marks the cells (row, column) that the log left out.
    """
    places = np.full(count, -1, np.int64)
    places[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    leaves = int((op == _LEAVE).sum())
    slots = np.zeros((count + leaves, _CELLS + unchanged.shape[1]), np.int64)
    at = np.empty(leaves, np.int64)
    departed, era = _walk(op, position, ordinal, codes, enters, unchanged, slots, at)
    alive = slots[codes[_last_rows(op, codes, slots, era)]]
    gone = places[(slots[:count, _STATE] == _GONE) & (slots[:count, _ERA] == 0)] if era == 0 else places[:0]
    return Outcome(era > 0, gone, _rows(alive, places), at[:departed], _rows(slots[count : count + departed], places))


def _rows(slots: Any, places: Any) -> Rows:
    origin = slots[:, _ORIGIN]
    return Rows(slots[:, _LAST], slots[:, _CELLS:], np.where(origin < 0, -1, places[origin]), slots[:, _DEPARTURE])


@compiled
def _walk(op: Any, position: Any, ordinal: Any, codes: Any, enters: Any, unchanged: Any, slots: Any, at: Any) -> Any:
    """Takes every row's effect into its key's slot; departures get slots of their own behind the keys'."""
    rows, width = len(op), unchanged.shape[1]
    count = len(slots) - len(at)
    departed, era = 0, 0
    for row in range(rows):
        kind = op[row]
        if kind == _TRUNCATE:
            era += 1
            departed = 0
            continue
        key = codes[row]
        _reach(slots, key, era)
        if kind == _LEAVE:
            if not _is_pair(op, position, ordinal, row, row + 1):
                _settle(slots, key, width)
                slots[count + departed] = slots[key]
                at[departed] = row
                departed += 1
                slots[key, _STATE] = _GONE
        elif kind == _DELETE:
            slots[key, _STATE] = _GONE
        else:
            if kind == _ENTER:
                if _is_pair(op, position, ordinal, row - 1, row):
                    _reach(slots, codes[enters[row]], era)
                    _move(slots, codes[enters[row]], key, width)
                else:
                    _begin(slots, key, -1, row, FROM_ORIGIN, width)
            elif kind == _UPDATE:
                _settle(slots, key, width)
            else:
                _begin(slots, key, -1, -1, NO_VALUE, width)
            for column in range(width):
                if not unchanged[row, column]:
                    slots[key, _CELLS + column] = row
            slots[key, _STATE] = _LIVE
            slots[key, _LAST] = row
    return departed, era


@compiled
def _reach(slots: Any, key: Any, era: Any) -> None:
    """A key that was not met since the last TRUNCATE has no row."""
    if slots[key, _ERA] != era:
        slots[key, _ERA] = era
        slots[key, _STATE] = _GONE


@compiled
def _is_pair(op: Any, position: Any, ordinal: Any, leave: Any, enter: Any) -> Any:
    if leave < 0 or enter >= len(op) or op[leave] != _LEAVE or op[enter] != _ENTER:
        return False
    return position[leave] == position[enter] and ordinal[leave] == ordinal[enter]


@compiled
def _begin(slots: Any, key: Any, origin: Any, departure: Any, source: Any, width: Any) -> None:
    slots[key, _LAST] = -1
    slots[key, _ORIGIN] = origin
    slots[key, _DEPARTURE] = departure
    for column in range(width):
        slots[key, _CELLS + column] = source


@compiled
def _settle(slots: Any, key: Any, width: Any) -> None:
    """Writes down what an untouched key or one without a row stands for."""
    if slots[key, _STATE] == _UNTOUCHED:
        _begin(slots, key, key, -1, FROM_ORIGIN, width)
    elif slots[key, _STATE] == _GONE:
        _begin(slots, key, -1, -1, NO_VALUE, width)


@compiled
def _move(slots: Any, old: Any, key: Any, width: Any) -> None:
    _settle(slots, old, width)
    if old != key:
        for cell in range(_LAST, _CELLS + width):
            slots[key, cell] = slots[old, cell]
        slots[old, _STATE] = _GONE


@compiled
def _last_rows(op: Any, codes: Any, slots: Any, era: Any) -> Any:
    """The last change of every key that has a row, in log order."""
    found = np.empty(len(op), np.int64)
    count = 0
    for row in range(len(op)):
        if op[row] == _TRUNCATE or op[row] == _LEAVE or op[row] == _DELETE:
            continue
        slot = slots[codes[row]]
        if slot[_STATE] == _LIVE and slot[_ERA] == era and slot[_LAST] == row:
            found[count] = row
            count += 1
    return found[:count]


def warm() -> None:
    """Compiles or loads the kernels for the arrays that the fold hands them."""
    op = np.array([int(Op.INSERT), _LEAVE, _ENTER], np.uint8)
    numbers = np.array([1, 2, 2], np.int64)
    codes, enters = np.array([0, 0, 1, 0], np.int64), np.array([-1, -1, 3], np.int64)
    fold_rows(op, numbers, numbers.copy(), codes, enters, 2, np.zeros((3, 1), np.bool_))
