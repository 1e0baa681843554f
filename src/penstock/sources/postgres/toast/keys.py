"""Keys as the log writes them: several columns as one value, and many values as one array literal."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def joined(keys: Sequence[pa.Array]) -> pa.Array:
    """One text per row, equal only for equal keys; empty where there is no key."""
    filled = [pc.fill_null(key, "") for key in keys]
    if len(filled) == 1:
        return filled[0]
    parts = []
    for key in filled:
        # The length in front keeps ('a', 'bc') and ('ab', 'c') apart.
        parts += [pc.cast(pc.binary_length(key), pa.string()), key]
    return pc.binary_join_element_wise(*parts, ":")


def array_literal(texts: pa.Array) -> str:
    """The texts as PostgreSQL writes a text[], without the quotes of SQL."""
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    whole = pa.ListArray.from_arrays(pa.array([0, len(escaped)], pa.int32()), escaped)
    return '{"' + str(pc.binary_join(whole, '","')[0].as_py()) + '"}' if len(escaped) else "{}"
