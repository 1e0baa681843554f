"""Keys as whole numbers, so that rows of one key can be found and ordered without looking at values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def key_codes(keys: Sequence[pa.Array]) -> tuple[Any, int]:
    """One whole number per row, equal for equal keys, and how many there are; NULL counts as the column's first value."""
    codes, count = np.zeros(0, np.int64), 1
    for key in keys:
        if pa.types.is_floating(key.type):
            # -0.0 and 0.0 are one key for the source but two for a dictionary.
            key = pc.add(key, pa.scalar(0.0, key.type))
        encoded = pc.dictionary_encode(key)
        these = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        size = max(1, len(encoded.dictionary))
        if len(codes):
            joint = pc.dictionary_encode(pa.array(codes * size + these))
            codes = joint.indices.to_numpy(zero_copy_only=False).astype(np.int64)
            count = max(1, len(joint.dictionary))
        else:
            codes, count = these, size
    return codes, count
