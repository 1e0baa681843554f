"""Memory of this process: fewer pools of it, and what is free, or was needed only to start, given back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_ARENAS = -8
"""M_ARENA_MAX of glibc's mallopt."""
_DONTNEED = 4
"""MADV_DONTNEED of Linux."""
FEW = 2
SETTINGS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": str(FEW),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
"""How processes that handle rows keep memory; read by their allocators when they start, and not again after a fork.

What a lane has used for one batch it uses for the next: memory that was given back meanwhile took longer to get again than rows
took to be decoded. Arrow's arrays come from the same pool as NumPy's: with mimalloc beside it a lane kept 40 MB more, and was no
faster.
"""


def few_pools() -> None:
    """Has threads share pools of free memory instead of having one each; to be called before there are threads."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENAS, FEW)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Has nothing looked through for garbage while libraries are loaded: there is none, and looking took a fifth of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # What is there now stays, out of the collector's sight.
        gc.freeze()
        if before:
            gc.enable()


def give_back() -> None:
    """Gives free memory back, and the code of libraries that only starting ran; some milliseconds. Nothing where it cannot."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)
        _let_code_go(libc)


def _let_code_go(libc: ctypes.CDLL) -> None:
    """Unmaps pages of code from files; what runs again is taken from the page cache again, in microseconds.

    Loading compiled kernels runs through 57 MB of LLVM, opening a database through 30 MB of DuckDB, and an idle process needs
    none of it. Only executable mappings: the linker writes into read-only data when it loads a library, and that would be lost.
    """
    advise = libc.madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        lines = maps.readlines()
    for line in lines:
        place, rights, _, _, inode, *_ = line.split(maxsplit=5)
        if rights == "r-xp" and inode != "0":
            begin, end = (int(text, 16) for text in place.split("-"))
            advise(begin, end - begin, _DONTNEED)
