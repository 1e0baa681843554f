"""Numbers as the server writes them, against Python's own reading of them, at every edge of their types."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.schema import Column
from penstock.sources.postgres import columns, copytext

TEXT = ord("t")


def build(texts: list[str], type_: pa.DataType) -> tuple[list[Any], list[str]]:
    """The values, and the texts that are none."""
    data = [text.encode() for text in texts]
    length = np.array([[len(d) for d in data]], np.int64)
    offset = np.cumsum(length, axis=1) - length
    b = np.frombuffer(b"".join(data) + b"\0", np.uint8)
    kind = np.full(length.shape, TEXT, np.uint8)
    array, odd = columns.build(b, kind[0], offset[0], length[0], Column("n", type_, "n"), True)
    return array.to_pylist(), [] if odd is None else odd.texts.to_pylist()


@pytest.mark.parametrize(
    ("type_", "least", "most"),
    [
        (pa.int16(), -(1 << 15), (1 << 15) - 1),
        (pa.int32(), -(1 << 31), (1 << 31) - 1),
        (pa.int64(), -(1 << 63), (1 << 63) - 1),
        (pa.uint32(), 0, (1 << 32) - 1),
    ],
    ids=str,
)
def test_whole_numbers_at_the_edges_of_their_types(type_: pa.DataType, least: int, most: int) -> None:
    edges = [least, least + 1, -1, 0, 1, 9, 10, most - 1, most, 10**17, 10**18 - 1, 10**18, -(10**18)]
    values = [v for v in edges if least <= v <= most]
    assert build([str(v) for v in values], type_) == (values, [])
    wrong = [str(least - 1), str(most + 1), "", "-", "1-", "1:", "/1", "9" * 20, "1.0", "0x1"]
    assert build(wrong, type_) == ([None] * len(wrong), wrong)


@pytest.mark.parametrize("digits", range(1, 10))
def test_a_byte_that_is_no_digit_is_found_wherever_it_stands(digits: int) -> None:
    whole = "123456789"[:digits]
    others = [chr(c) for c in range(1, 128) if not 48 <= c <= 57]
    wrong = [whole[:i] + c + whole[i + 1 :] for i in range(digits) for c in others if (i, c) != (0, "-") or digits == 1]
    # Numbers stand on both sides, whose digits are not its own.
    texts = [text for w in wrong for text in ("99999999", w, "88888888")]
    values, odd = build(texts, pa.int64())
    assert values == [99999999, None, 88888888] * len(wrong) and odd == wrong
    assert build(["77777777", whole, f"-{whole}", "7"], pa.int64()) == ([77777777, int(whole), -int(whole), 7], [])


@pytest.mark.parametrize("shape", [(12, 2), (18, 0), (18, 18), (19, 4), (38, 10)], ids=str)
def test_fixed_point_numbers_at_the_edges_of_their_types(shape: tuple[int, int]) -> None:
    precision, scale = shape
    most = Decimal((0, (9,) * precision, -scale))
    step = Decimal((0, (1,), -scale))
    with localcontext(prec=60):
        values = [most, most.copy_negate(), most - step, step, step.copy_negate(), Decimal(0), most // 10]
        beyond = [format(most + step, "f"), format((most + step).copy_negate(), "f")]
    texts = [format(v, "f") for v in values]
    assert build(texts, pa.decimal128(precision, scale)) == ([Decimal(t) for t in texts], [])
    wrong = [*beyond, "NaN", "Infinity", "-Infinity", "", "-", ".", "1.2.3", "1e5"]
    wrong.append(format(step, "f") + ("1" if scale else ".1"))
    assert build(wrong, pa.decimal128(precision, scale)) == ([None] * len(wrong), wrong)


@pytest.mark.parametrize("before", range(20))
def test_a_cell_ends_at_its_tab_wherever_that_stands_among_eight_bytes(before: int) -> None:
    # Bytes beside a tab and a backslash, and with the highest bit set, are none.
    plain = bytes([8, 10 + 1, 91, 93, 0x89, 0xDC, 0x80, 0xFF, 1, 127])
    first, second = (plain * 3)[:before], (plain[::-1] * 3)[: 20 - before]
    row = first + b"\\\\x\t" + second + b"\t\\N\n"
    cells: list[Any] = [np.zeros((3, 1), t) for t in (np.uint8, np.int64, np.int64)]
    b = np.frombuffer(row, np.uint8).copy()
    assert copytext.lines(b, *cells) == 0
    kind, offset, length = (c[:, 0] for c in cells)
    found = [bytes(b[o : o + n]) for o, n in zip(offset, length, strict=True)]
    assert found[:2] == [first + b"\\x", second] and [chr(k) for k in kind] == ["t", "t", "n"]
