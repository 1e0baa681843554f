"""Odd values that DuckDB can hold after all: infinite dates and timestamps, and the end of the day as a time.

Arrow has no such values; DuckDB keeps them as numbers at the edge of the same representation, and takes them from Arrow as
they are.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_DAYS: Final = (1 << 31) - 1
_MICROSECONDS: Final = (1 << 63) - 1
_DAY: Final = 86_400_000_000


def meanings(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Words, and the values of the type that DuckDB takes for them."""
    if pa.types.is_date32(kind):
        return pa.array(["infinity", "-infinity"]), pa.array([_DAYS, -_DAYS], pa.int32()).view(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(["infinity", "-infinity"]), pa.array([_MICROSECONDS, -_MICROSECONDS], pa.int64()).view(kind)
    if pa.types.is_time64(kind):
        return pa.array(["24:00:00"]), pa.array([_DAY], pa.int64()).view(kind)
    return pa.array([], pa.string()), pa.array([], kind)
