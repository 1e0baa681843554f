"""The clock that deadlines are told by: since the machine's start, its sleep included, never set back or forth."""

from __future__ import annotations

import time


def clock() -> float:
    """Seconds since the machine was started; the same for all its processes, and goes on while one is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
