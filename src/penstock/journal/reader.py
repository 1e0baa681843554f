"""Readers of a journal: the tail that a destination's loop follows, and the slice reader of a lane."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import JournalCorrupt, JournalTrimmed
from penstock.journal.catalog import Catalog
from penstock.journal.checksum import crc32
from penstock.journal.record import Note, Slice, note_mark, read_frame, unpack_frames, unpack_note
from penstock.journal.segment import catalog_path, index_path, segment_numbers, segment_path

_READ = 4 << 20
_FIRST_READ = 64 << 10


class JournalTail:
    """Follows the index from a position on; any process may, at any time, as often as it likes.

    `read` returns only what is durable. A journal trimmed beyond the position raises JournalTrimmed.
    """

    def __init__(self, directory: Path, after: int | None) -> None:
        """`after` None reads from the oldest position there is."""
        self._directory = directory
        self._after = after
        self._segment = 0
        self._at = 0
        self._file = -1
        self.mark = 0
        """Everything that committed up to here has been returned by `read` or lies before the start."""

    def read(self, limit: int = _READ) -> list[Slice]:
        """The next visible slices after the position, in log order; empty when there are none now."""
        if self._segment == 0 and not self._seek():
            return []
        found: list[Slice] = []
        while True:
            data = os.pread(self._file, limit, self._at)
            if not data:
                if not self._advance():
                    return found
                continue
            frames, used = unpack_frames(data)
            self._at += used
            for payload, _ in frames:
                mark = note_mark(payload)
                self.mark = max(self.mark, mark)
                if self._after is None or mark > self._after:
                    found += [s for s in unpack_note(payload).slices if self._after is None or s.last > self._after]
            if found or (data and not frames and len(data) < limit):
                return found
            if not frames:
                # A note larger than what one read takes: a header with thousands of tables.
                limit *= 2

    def close(self) -> None:
        """Gives back the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _seek(self) -> bool:
        asked = self._after
        while (number := self._find()) is not None:
            try:
                self._open(number)
            except JournalTrimmed:
                # Trimmed since it was listed: what there is now decides whether the position is still there.
                self._after = asked
            else:
                return True
        return False

    def _find(self) -> int | None:
        """The segment to begin with; None while there is none."""
        numbers = segment_numbers(self._directory)
        found = _marks(self._directory, numbers, self._after) if numbers else None
        if found is None:
            return None
        begins, own = found
        if self._after is None:
            self._after = begins
        if self._after < begins:
            raise JournalTrimmed(
                f"the journal in {self._directory} begins after the position that is asked for",
                asked=self._after,
                begins=begins,
            )
        return own

    def _advance(self) -> bool:
        # A segment without a header is still being made, and may be made again after a crash.
        if header_mark(self._directory, self._segment + 1) is None:
            return False
        # The writer never returns to a segment it has left, but it may have added to it since our last read.
        if os.fstat(self._file).st_size > self._at:
            return True
        self._open(self._segment + 1)
        return True

    def _open(self, number: int) -> None:
        self.close()
        try:
            self._file = os.open(index_path(self._directory, number), os.O_RDONLY)
        except FileNotFoundError as error:
            raise JournalTrimmed(f"journal segment {number} is gone", segment=number) from error
        self._segment, self._at = number, 0


def header_mark(directory: Path, number: int) -> int | None:
    """Up to where the journal was complete when a segment began; None when its header is not there (yet)."""
    try:
        with index_path(directory, number).open("rb") as file:
            header = read_frame(file)
    except FileNotFoundError:
        return None
    return note_mark(header) if header is not None else None


def _marks(directory: Path, numbers: Sequence[int], after: int | None) -> tuple[int, int] | None:
    """Where the journal begins, and the last segment that began at or before a position; None where there is no journal.

    A journal may have hundreds of segments: a few headers are read, not all.
    """
    heads = ((at, mark) for at, number in enumerate(numbers) if (mark := header_mark(directory, number)) is not None)
    own, begins = next(heads, (0, None))
    if begins is None:
        return None
    low, high, sought = own + 1, len(numbers), begins if after is None else after
    while low < high:
        middle = at = (low + high) // 2
        while at >= low and (mark := header_mark(directory, numbers[at])) is None:
            at -= 1
        if at < low:
            low = middle + 1
        elif mark is not None and mark <= sought:
            own, low = at, middle + 1
        else:
            high = at
    return begins, numbers[own]


def journal_mark(directory: Path) -> int | None:
    """Up to where the journal is complete as its index has it; None where there is no journal."""
    for number in reversed(segment_numbers(directory)):
        if marks := [note.mark for note in read_notes(directory, number)]:
            return max(marks)
    return None


def read_notes(directory: Path, number: int) -> Iterator[Note]:
    """The notes of a segment's index, its header first."""
    try:
        with index_path(directory, number).open("rb") as file:
            # Who wants the first of them is not to wait for all.
            data, size = b"", _FIRST_READ
            while more := file.read(size):
                size = _READ
                frames, used = unpack_frames(data + more)
                data = (data + more)[used:]
                yield from (unpack_note(payload) for payload, _ in frames)
    except FileNotFoundError:
        return


class SliceReader:
    """Reads the bytes of slices, verified, into one buffer; made anew in every lane."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, int] = {}
        self._buffer = np.empty(1 << 20, np.uint8)
        self.catalog = Catalog(catalog_path(directory))

    def read(self, slices: Sequence[Slice]) -> tuple[npt.NDArray[np.uint8], list[int]]:
        """The slices' bytes one after the other, and where each begins; valid until the next call."""
        total = sum(s.size for s in slices)
        if total > len(self._buffer) or len(self._buffer) > max(64 << 20, 4 * total):
            self._buffer = np.empty(total + total // 4, np.uint8)
        view = memoryview(self._buffer)  # type: ignore[arg-type]
        starts = []
        at = 0
        for s in slices:
            target = view[at : at + s.size]
            done = 0
            while done < s.size:
                count = os.preadv(self._file(s.segment), [target[done:]], s.start + done)
                if count == 0:
                    break
                done += count
            if done < s.size or crc32(target) != s.checksum:
                raise JournalCorrupt(
                    f"journal segment {s.segment} is damaged at byte {s.start}",
                    segment=s.segment,
                    offset=s.start,
                    position=s.last,
                )
            starts.append(at)
            at += s.size
        return self._buffer[:total], starts

    def close(self) -> None:
        """Gives back the files."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _file(self, number: int) -> int:
        if number not in self._files:
            if len(self._files) > 8:
                self.close()
            try:
                self._files[number] = os.open(segment_path(self._directory, number), os.O_RDONLY)
            except FileNotFoundError as error:
                raise JournalTrimmed(f"journal segment {number} is gone", segment=number) from error
        return self._files[number]
