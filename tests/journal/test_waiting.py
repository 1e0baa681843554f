"""How old what waits is, told without reading a journal of hundreds of segments for it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from penstock.journal import waiting
from penstock.journal.reader import JournalTail, header_mark, read_notes
from penstock.journal.retention import oldest_position
from penstock.journal.segment import index_path, segment_numbers
from penstock.journal.waiting import Waiting, age_after
from penstock.journal.writer import JournalWriter
from tests.journal.test_journal import BEGIN, a_slice
from tests.processes import reading

SEGMENTS = 200
SLICES = 100
"""In each segment, so that its index is some ten thousand bytes."""
APPENDED = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def long_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Positions 101, 102, …, a hundred in each of two hundred segments."""
    directory = tmp_path_factory.mktemp("journal")
    writer = JournalWriter(directory, segment_bytes=1 << 10)
    writer.begin(BEGIN)
    position = BEGIN
    for _ in range(SEGMENTS):
        place = writer.append(memoryview(b"x" * 2000))
        upto = position + SLICES
        writer.publish([a_slice(place, at, appended_at=APPENDED + at) for at in range(position + 1, upto + 1)], [], 0)
        position = upto
    writer.close()
    assert len(segment_numbers(directory)) == SEGMENTS
    return directory


LAST = BEGIN + SEGMENTS * SLICES


def total(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.idx"))


@pytest.mark.parametrize("position", [BEGIN, 150, 5_099, 5_100, 5_101, LAST // 2, LAST - 1, LAST])
def test_a_place_is_found_by_a_few_headers(long_journal: Path, position: int) -> None:
    with reading() as read, contextlib.closing(JournalTail(long_journal, position)) as tail:
        found = tail.read(1 << 10)
    assert [s.last for s in found[:1]] == ([position + 1] if position < LAST else [])
    assert read.calls < 50 and read.bytes < total(long_journal) / 20, read


def test_a_place_is_found_past_segments_whose_index_is_lost(tmp_path: Path, long_journal: Path) -> None:
    for path in long_journal.iterdir():
        (tmp_path / path.name).hardlink_to(path)
    for number in (1, *range(90, 120), SEGMENTS):
        index_path(tmp_path, number).unlink()
    marks = {n: mark for n in range(1, SEGMENTS + 1) if (mark := header_mark(tmp_path, n)) is not None}
    for position in (200, 201, 8_999, 9_000, 10_500, 12_000, 12_150, LAST):
        with contextlib.closing(JournalTail(tmp_path, position)) as tail:
            tail.read(1 << 10)
            begun = max(n for n, mark in marks.items() if mark <= position)
            assert tail._segment >= begun and tail.mark > marks[begun], position


def test_the_first_note_is_had_without_the_others(long_journal: Path, tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    writer.begin(BEGIN)
    for at in range(2_000):
        place = writer.append(memoryview(b"x"))
        writer.publish([a_slice(place, BEGIN + 1 + at)] * 2, [], 0)
    writer.close()
    size = index_path(tmp_path, 1).stat().st_size
    with reading() as read:
        assert header_mark(tmp_path, 1) == BEGIN
    assert read.bytes < 10_000 < size / 10, read
    with reading() as read:
        assert oldest_position(tmp_path) == BEGIN
    assert read.bytes < size / 4
    assert len(list(read_notes(tmp_path, 1))) == 2_001


def test_what_waits_is_sought_once_and_then_only_the_clock_is_read(long_journal: Path) -> None:
    there = Waiting(long_journal)
    expected = time.time() - (APPENDED + 5_151) / 1e6
    assert there.age(5_150) == pytest.approx(expected, abs=5)
    with reading() as read:
        for _ in range(100):
            there.age(5_150)
    assert read.calls == 0, read
    # Even one that moves is not followed at every question.
    with reading() as read:
        assert there.age(LAST) > 0
    assert read.calls == 0, read
    there.close()
    assert age_after(long_journal, 5_150) == pytest.approx(expected, abs=5)


def test_while_nothing_waits_a_look_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "EVERY", 0.0)
    writer = JournalWriter(tmp_path)
    writer.begin(BEGIN)
    place = writer.append(memoryview(b"x"))
    writer.publish([a_slice(place, BEGIN + 1 + at, appended_at=APPENDED) for at in range(1_000)], [], 0)
    there, end = Waiting(tmp_path), BEGIN + 1_000
    assert there.age(end) == 0
    with reading() as read:
        assert there.age(end) == 0
    assert read.bytes == 0, read
    minute_ago = int((time.time() - 60) * 1e6)
    writer.publish([a_slice(writer.append(memoryview(b"y")), end + 1, appended_at=minute_ago)], [], 0)
    assert 59 < there.age(end) < 120
    assert there.age(end + 1) == 0
    there.close()
    writer.close()
