"""Rows of COPY's text format are located the same by 64 bytes at a time and cell by cell, and hold what the server wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.schema import Column
from penstock.errors import DecodeFailed
from penstock.sources.postgres import columns, copytext

ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
Cell = str | None

cells = (
    st.none() | st.text("N\\\tab\n", max_size=6) | st.sampled_from(["", "N", "\\N", "x" * 61, "x" * 62, "x" * 63, "x" * 64, "é"])
)


def written(rows: list[list[Cell]]) -> bytes:
    """The rows as the server sends them, a frame each."""
    frames = b""
    for row in rows:
        line = "\t".join("\\N" if c is None else "".join(ESCAPES.get(x, x) for x in c) for c in row).encode() + b"\n"
        frames += b"d" + (4 + len(line)).to_bytes(4, "big") + line
    return frames


def located(frames: bytes, width: int, room: int, behind: bytes = b"") -> tuple[int, list[list[Cell]]]:
    """Why it stopped, and the rows that it found; the buffer has `room` bytes more than are filled."""
    b = np.frombuffer(frames + behind + bytes(max(0, room - len(behind))), np.uint8).copy()
    shape = (width, len(frames) // 5 + 1)
    kind, offset, length = np.zeros(shape, np.uint8), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    count, _, reason = copytext.split(b, 0, len(frames), 0, width, kind, offset, length)

    def cell(j: int, i: int) -> Any:
        at = int(offset[j, i])
        return None if kind[j, i] == ord("n") else bytes(b[at : at + int(length[j, i])]).decode()

    return reason, [[cell(j, i) for j in range(width)] for i in range(count)]


@given(st.integers(1, 5).flatmap(lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=5)))
def test_rows_are_found_whatever_room_there_is(rows: list[list[Cell]]) -> None:
    frames, width = written(rows), len(rows[0])
    for room, behind in ((0, b""), (200, b""), (200, b"\t\\N\t" * 40)):
        assert located(frames, width, room, behind) == (copytext.MORE, rows)


@pytest.mark.parametrize("room", [0, 200])
@pytest.mark.parametrize(
    "line", [b"a\tb", b"a\tb\tc\td", b"", b"a\tb\tc\\", b"\\N\t\\N", b"\\N\t\\N\t\\N\t", b"x" * 70, b"\t" * 70]
)
def test_a_row_of_another_width_is_none(line: bytes, room: int) -> None:
    frame = b"d" + (5 + len(line)).to_bytes(4, "big") + line + b"\n"
    assert located(frame, 3, room) == (copytext.BROKEN, [])


@pytest.mark.parametrize("before", [0, 1, 7, 8, 9, 40])
def test_text_that_is_not_utf8_is_refused_wherever_it_stands(before: int) -> None:
    def build(*texts: bytes) -> Any:
        length = np.array([len(t) for t in texts], np.int64)
        b = np.frombuffer(b"".join(texts) + bytes(16), np.uint8)
        kind = np.full(len(texts), ord("t"), np.uint8)
        return columns.build(b, kind, np.cumsum(length) - length, length, Column("t", pa.string(), "text"))[0].to_pylist()

    plain, more = b"x" * before, b"x" * before + "é".encode()
    assert build(plain, more, b"y") == [plain.decode(), more.decode(), "y"]
    for texts in ((b"y" * 30, plain + b"\xff", b"y" * 30), (b"y", more[:-1]), (plain + b"\xe9", b"y" * 30)):
        with pytest.raises(DecodeFailed):
            build(*texts)
