"""Compiled conversions from the server's text to Arrow's memory, one column of a batch at a time.

Every kernel gets the bytes, and per row the kind (`t` has a value), byte and length of the text; whoever found these has made
sure that they lie within the bytes. It fills `out` and sets `bad` where the text is no value of the target type; it returns
how many were bad. A bad cell keeps its text elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

TEXT: Final = 116


def samples() -> tuple[Any, ...]:
    """Bytes, kinds, places, lengths and marks of no rows, of the very types that the decoder passes."""
    # Rows of a matrix: numba knows such a row as contiguous.
    kind, offset, length = (np.zeros((1, 0), t)[0] for t in (np.uint8, np.int64, np.int64))
    return np.zeros(8, np.uint8), kind, offset, length, np.zeros(0, np.bool_)
