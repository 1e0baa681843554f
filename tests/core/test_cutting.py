"""Arrays that are made once and cut to size."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.core.cutting import MOST_KEPT, cut

MADE: list[int] = []


def sevens(size: int, offset: int) -> pa.Array:
    MADE.append(size)
    return pa.repeat(pa.scalar(7 + offset, pa.int8()), size)


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, MOST_KEPT, MOST_KEPT + 1])
def test_it_has_as_many_rows_as_were_asked_for(count: int) -> None:
    found = cut(sevens, count, 1)
    assert len(found) == count and set(found.to_pylist()) <= {8}


def test_small_ones_are_made_once_and_large_ones_are_not_kept() -> None:
    MADE.clear()
    for count in (3, 900, 1024, MOST_KEPT + 1, MOST_KEPT + 1):
        cut(sevens, count, 2)
    assert MADE == [1024, MOST_KEPT + 1, MOST_KEPT + 1]
