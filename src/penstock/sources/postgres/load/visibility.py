"""Visibility: which transactions a snapshot contains, as pg_current_snapshot() describes it.

The description has ids of 64 bits, the log those of 32: an id of the log means the one nearest to the snapshot's upper end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

_HALF = 1 << 31
_CYCLE = 1 << 32


@dataclass(frozen=True)
class Described:
    """A snapshot: everything below `lower` has ended, nothing from `upper` on had begun, `running` lie in between."""

    lower: int
    upper: int
    running: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The snapshot that pg_current_snapshot() wrote."""
        lower, upper, running = text.split(":")
        return cls(int(lower), int(upper), tuple(int(x) for x in running.split(",") if x))

    def __str__(self) -> str:
        return f"{self.lower}:{self.upper}:{','.join(map(str, self.running))}"

    def contains(self, xids: Any) -> Any:
        """For an array of top-level transactions of the log, which of them the snapshot contains; never 0, which is none."""
        narrow = np.asarray(xids, np.int64)
        # Modulo 2^32 a transaction that has not begun yet for the snapshot would look like a very old one.
        wide = self.upper + ((narrow - self.upper + _HALF) % _CYCLE) - _HALF
        seen = wide < self.upper
        if self.running:
            running = np.array(sorted(self.running), np.int64)
            place = np.minimum(np.searchsorted(running, wide), len(running) - 1)
            seen &= running[place] != wide
        return seen & (narrow != 0)


def contains(described: str, xids: Any) -> Any:
    """For an array of transactions of the log, which of them the described snapshot contains."""
    return Described.parse(described).contains(xids)
