"""Retention: which segments of a journal may go."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from penstock.journal.reader import header_mark, read_notes
from penstock.journal.segment import index_path, segment_numbers, segment_path


def journal_size(directory: Path) -> int:
    """Bytes of all segments."""
    total = 0
    for number in segment_numbers(directory):
        try:
            total += segment_path(directory, number).stat().st_size
        except FileNotFoundError:
            continue
    return total


def trim(directory: Path, passed: int, retention: float, max_bytes: int, now: float | None = None) -> list[int]:
    """Removes the oldest segments that end at or before `passed` and are older than `retention` seconds, or too much.

    The segment being written never goes, nor one that a destination still needs, whatever the size.
    """
    now = time.time() if now is None else now
    numbers = segment_numbers(directory)
    size = journal_size(directory)
    removed = []
    for number, following in itertools.pairwise(numbers):
        path = segment_path(directory, number)
        status = path.stat()
        if now - status.st_mtime < retention and size <= max_bytes:
            break
        mark = header_mark(directory, following)
        if mark is None or mark > passed or _reaches_over(directory, number, numbers[-1], passed):
            break
        path.unlink()
        index_path(directory, number).unlink(missing_ok=True)
        size -= status.st_size
        removed.append(number)
    return removed


def _reaches_over(directory: Path, number: int, newest: int, passed: int) -> bool:
    """Whether a transaction with pieces in this segment, or before, is still needed or still open.

    Its slices are noted where it commits, perhaps many segments later. Every note says which segments were needed by
    transactions that were open then: after the first that needs none up to this one, nothing more can come.
    """
    for later in range(number + 1, newest + 1):
        for note in read_notes(directory, later):
            if any(s.segment <= number and s.last > passed for s in note.slices):
                return True
            if note.floor == 0 or note.floor > number:
                return False
    return True


def oldest_position(directory: Path) -> int:
    """The oldest position after which everything is still there: transactions that reach back over what was removed are not."""
    numbers = segment_numbers(directory)
    position = header_mark(directory, numbers[0]) or 0
    for number in numbers:
        for note in read_notes(directory, number):
            position = max([position, *(s.last for s in note.slices if s.segment < numbers[0])])
            if note.floor == 0 or note.floor >= numbers[0]:
                return position
    return position
