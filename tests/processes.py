"""Looking at processes, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(claim: Callable[[], bool], seconds: float = 30) -> None:
    """Return as soon as `claim` holds; fail when it does not within the deadline."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def is_gone(process: int) -> bool:
    """Whether a process has ended; one that only waits to be collected by its parent has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
