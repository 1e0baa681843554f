"""Compiled inner loops of the formats; loaded on use, because numba takes half a second to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """Compiles a loop when it is first called, keeps the result on disk, and lets other threads run meanwhile."""
    import numba

    return cast(Loop, numba.njit(cache=True, nogil=True)(loop))
