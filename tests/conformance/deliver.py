"""Delivers one epoch of a fixed scenario in a process of its own, so that a test can kill it at a failpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.batches import delete, insert, move, truncate, update
from tests.conformance.harness import Harness, Work
from tests.table_model import ONE, TWO, shared_out

FIRST: Work = [
    (ONE, [[insert({"id": n, "v": n, "big": f"big{n}", "large": f"large{n}"}, position=10, ordinal=n) for n in range(1, 6)]]),
    (TWO, [[insert({"a": n, "b": "x", "v": n, "big": "", "large": None}, position=10, ordinal=10 + n) for n in range(1, 3)]]),
]
SECOND: Work = [
    (
        ONE,
        shared_out(
            ONE,
            [
                update({"id": 1, "v": 100}, position=1001, ordinal=1),
                delete({"id": 2}, position=1001, ordinal=2),
                *move({"id": 3}, {"id": 30, "v": 3}, position=1002, ordinal=1),
                insert({"id": 2, "v": 7, "big": "again", "large": ""}, position=1003, ordinal=1),
            ],
            2,
        ),
    ),
    (
        TWO,
        shared_out(
            TWO,
            [
                truncate(position=1001, ordinal=3),
                insert({"a": 9, "b": "z", "v": 1, "big": "n", "large": "m"}, position=1003, ordinal=2),
            ],
            2,
        ),
    ),
]

if __name__ == "__main__":
    name, home = sys.argv[1:]
    Harness(name, Path(home)).deliver(2, SECOND)
