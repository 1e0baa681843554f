"""UUIDs on their way into DuckDB: texts as their bytes, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.formats.kernels import compiled


def uuid_bytes(texts: pa.Array) -> pa.Array:
    """UUIDs as their 16 bytes; ValueError when a text is none."""
    texts = texts.cast(pa.string())
    if texts.null_count or texts.offset:
        texts = pa.concat_arrays([texts])
    _, offsets, data = texts.buffers()
    count = len(texts)
    out = np.zeros(count * 16, dtype=np.uint8)
    if count and data is not None:
        starts = np.frombuffer(offsets, dtype=np.int32)[texts.offset : texts.offset + count + 1]
        absent = texts.is_null().to_numpy(zero_copy_only=False)
        bad = _parse_uuids(starts, np.frombuffer(data, dtype=np.uint8), absent, out)
        if bad >= 0:
            raise ValueError(f"row {bad} is not a UUID")
    validity = pa.array(np.zeros(count, np.bool_), mask=texts.is_null().to_numpy(zero_copy_only=False)).buffers()[0]
    return pa.Array.from_buffers(pa.binary(16), count, [validity, pa.py_buffer(out)], null_count=texts.null_count)


@compiled
def _parse_uuids(starts: Any, data: Any, absent: Any, out: Any) -> int:
    """Writes 16 bytes per text of 32 hexadecimal digits, dashes passed over; the first row that is none, or -1."""
    for row in range(len(absent)):
        if absent[row]:
            continue
        nibble = 0
        for at in range(starts[row], starts[row + 1]):
            byte = data[at]
            if byte == 45:
                continue
            if 48 <= byte <= 57:
                value = byte - 48
            elif 97 <= byte <= 102:
                value = byte - 87
            elif 65 <= byte <= 70:
                value = byte - 55
            else:
                return row
            if nibble >= 32:
                return row
            place = row * 16 + nibble // 2
            out[place] = np.uint8(out[place] * 16 + value)
            nibble += 1
        if nibble != 32:
            return row
    return -1


def warm() -> None:
    """Compiles or loads the kernel for arrays as Arrow hands them out."""
    uuid_bytes(pa.array(["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]))
