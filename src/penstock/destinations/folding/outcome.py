"""What the fold's inner loop leaves, as numbers of rows and keys; apart from the loop, because numba takes long to import."""

from __future__ import annotations

from typing import Any, NamedTuple

FROM_ORIGIN = -1
"""A cell's source: the row's origin."""
NO_VALUE = -2
"""A cell's source: nowhere, it is NULL."""


class Rows(NamedTuple):
    """Rows as numbers: their last changes, their cells' sources, and the origin of what is unknown, -1 for none.

    `origin` is a place among the keys; `departure` the ENTER row when the row came from a key of another bucket.
    """

    last: Any
    sources: Any
    origin: Any
    departure: Any


class Outcome(NamedTuple):
    """What is left: places of keys that are gone, rows that live, and rows that left for another bucket at rows `at`."""

    truncated: bool
    gone: Any
    live: Rows
    at: Any
    left: Rows
