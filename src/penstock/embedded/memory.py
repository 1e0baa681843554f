"""Memory of this process as the C library keeps it: fewer pools, and what is free given back to the system."""

from __future__ import annotations

import contextlib
import ctypes

_ARENAS = -8
"""M_ARENA_MAX of glibc's mallopt."""
FEW = 2
SETTINGS = {
    "ARROW_DEFAULT_MEMORY_POOL": "mimalloc",
    "MALLOC_ARENA_MAX": str(FEW),
    "MIMALLOC_PURGE_DELAY": "1000",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""How processes that handle rows keep memory; read by their allocators when they start, and not again after a fork.

What a lane has used for one batch it uses for the next: memory that was given back meanwhile took longer to get again than rows
took to be decoded. What lies free for a second goes back.
"""


def few_pools() -> None:
    """Has threads share pools of free memory instead of having one each; to be called before there are threads."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENAS, FEW)


def give_back() -> None:
    """Gives free memory back; some milliseconds. Nothing happens where the C library cannot."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
