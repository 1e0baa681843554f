"""Looking at processes, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class Read:
    """What this thread has read from files, by the kernel's count."""

    bytes: int = 0
    calls: int = 0


def _counted() -> Read:
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    found = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return Read(found["rchar"], found["syscr"])


@contextmanager
def reading() -> Iterator[Read]:
    """Counts what the block reads."""
    _counted()
    one, two = _counted(), _counted()
    read, before = Read(), _counted()
    yield read
    after = _counted()
    # Counting reads too.
    read.bytes = after.bytes - before.bytes - (two.bytes - one.bytes)
    read.calls = after.calls - before.calls - (two.calls - one.calls)
