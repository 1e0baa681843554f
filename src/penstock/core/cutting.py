"""Arrays whose rows are all alike, made once and cut to size.

Memory that is touched for the first time costs more than the values that are put there, and small batches come by the hundred
every second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

_LEAST, MOST_KEPT = 1024, 1 << 18
"""Rows."""


def cut(make: Callable[..., pa.Array], count: int, *about: Any) -> pa.Array:
    """The first rows of what `make(size, *about)` gives, which is kept unless it is large; `make` is a module's function."""
    if count > MOST_KEPT:
        return make(count, *about)
    return _kept(make, max(_LEAST, 1 << (count - 1).bit_length()), about).slice(0, count)


@lru_cache(maxsize=128)
def _kept(make: Callable[..., pa.Array], size: int, about: tuple[Any, ...]) -> pa.Array:
    return make(size, *about)
