"""The journal's one writer: blocks, groups, segments, and the order in which they become durable and visible."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import JournalLocked, JournalUnwritable
from penstock.journal.catalog import Entry, pack_entry
from penstock.journal.checksum import crc32
from penstock.journal.record import (
    HEADER_BYTES,
    BlockKind,
    Note,
    Slice,
    pack_block,
    pack_frame,
    pack_header,
    pack_note,
)
from penstock.journal.recovery import recover
from penstock.journal.segment import catalog_path, index_path, segment_path
from penstock.observe.failpoints import reach

SEGMENT_BYTES = 128 << 20
# Small groups are written over zeros that are already there: a file that does not grow is synced without touching the file
# system's own journal, which every other sync on the disk would otherwise wait for.
AHEAD_BYTES = 1 << 20
_ZEROS = bytes(AHEAD_BYTES)


class JournalWriter:
    """Appends slices; `publish` makes everything appended so far durable and then visible, in that order.

    What was appended and not published is cut off at the next start. After an error the writer is unusable: open a new one.
    """

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, patience: float = 10.0) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._segment_file = self._index_file = self._catalog_file = -1
        self._guarded_make(directory)
        self._lock = _lock(directory / "lock", patience)
        try:
            state = recover(directory)
            self.end = state.end
            """Position of the last visible transaction; 0 in a new journal."""
            self.mark = state.mark
            """Everything that committed up to here is in the journal."""
            self.cut = state.cut
            """Bytes of unfinished work that recovery removed."""
            self.entries = {e["relation"]: Entry.from_data(e) for e in state.entries}
            """The catalogue in force, by relation."""
            self.versions: dict[tuple[str, str], int] = {}
            """The newest version of every table name that has ever appeared."""
            for entry in state.entries:
                name = (entry["table"]["schema"], entry["table"]["name"])
                self.versions[name] = max(self.versions.get(name, 0), int(entry["table"]["version"]))
            self.catalog = max((e["seq"] for e in state.entries), default=0)
            self._catalog_file = os.open(catalog_path(directory), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self.floor = 0
            """The oldest segment with pieces of a transaction that is still open, which retention must keep; 0: none."""
            self._unpublished = 0
            self.segment = state.segment
            self._size = self._extent = state.size
            if state.segment:
                self._open_files()
        except OSError as error:
            raise _unwritable(directory, error) from error

    @staticmethod
    def _guarded_make(directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _unwritable(directory, error) from error

    @property
    def is_new(self) -> bool:
        """Whether nothing has been begun yet."""
        return self.segment == 0

    def begin(self, position: int) -> None:
        """Begins a new journal at the position from which the source delivers; durable on return."""
        self.end = self.mark = position
        self._guard(self._roll)

    def append(self, payload: memoryview) -> tuple[int, int, int, int]:
        """Writes one slice's bytes; returns segment, start, end and checksum for its record. Not durable yet."""
        place: tuple[int, int, int, int] = self._guard(self._append, payload)
        return place

    def _append(self, payload: memoryview) -> tuple[int, int, int, int]:
        if self._size >= self._segment_bytes:
            self._roll()
        self._unpublished = self._unpublished or self.segment
        checksum = crc32(payload)
        start = self._size + HEADER_BYTES
        self._write([pack_header(BlockKind.DATA, checksum, len(payload)), payload])
        return self.segment, start, self._size, checksum

    def open_slice(self) -> None:
        """Begins a slice whose bytes come in several calls of `extend`, for a message larger than any buffer."""
        self._guard(self._open_slice)

    def _open_slice(self) -> None:
        if self._size >= self._segment_bytes:
            self._roll()
        self._unpublished = self._unpublished or self.segment
        self._streamed_start, self._streamed_checksum = self._size, 0
        self._write([bytes(HEADER_BYTES)])

    def extend(self, payload: memoryview) -> None:
        """Adds bytes to the slice that `open_slice` began."""
        self._streamed_checksum = crc32(payload, self._streamed_checksum)
        self._guard(self._write, [payload])

    def close_slice(self) -> tuple[int, int, int, int]:
        """Ends the streamed slice; returns what `append` returns."""
        start = self._streamed_start + HEADER_BYTES
        header = pack_header(BlockKind.DATA, self._streamed_checksum, self._size - start)
        self._guard(os.pwrite, self._segment_file, header, self._streamed_start)
        return self.segment, start, self._size, self._streamed_checksum

    def publish(self, slices: Sequence[Slice], entries: Sequence[Entry], mark: int) -> None:
        """Makes appended bytes durable, then these slices and table versions visible; returns when readers can see them."""
        self._guard(self._publish, slices, entries, mark)

    def _publish(self, slices: Sequence[Slice], entries: Sequence[Entry], mark: int) -> None:
        if entries:
            self.catalog = entries[-1].seq
            self.entries.update((e.relation, e) for e in entries)
        if slices:
            self.end = slices[-1].last
        self.mark = max(mark, self.end)
        self._unpublished = 0
        data = tuple(e.to_data() for e in entries)
        note = pack_note(Note(self.mark, self.catalog, tuple(slices), data, self.floor))
        reach("capture.before_journal_write")
        self._write([pack_block(BlockKind.NOTE, note), note])
        reach("capture.after_journal_write")
        os.fdatasync(self._segment_file)
        reach("capture.after_journal_sync")
        self._reveal(note, data)
        reach("capture.after_index_write")

    def sync(self) -> None:
        """Lets the disk catch up with what a long transaction has written; makes nothing visible."""
        self._guard(os.fdatasync, self._segment_file)

    def close(self) -> None:
        """Gives up the lock; what was not published is left to the next recovery."""
        if self._segment_file >= 0:
            with contextlib.suppress(OSError):
                self._trim_zeros()
        for name in ("_segment_file", "_index_file", "_catalog_file", "_lock"):
            if getattr(self, name, -1) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)

    def _reveal(self, note: bytes, entries: Sequence[dict[str, Any]]) -> None:
        # Index and catalogue are not synced: recovery mends them from the segment, which is.
        if entries:
            _write_all(self._catalog_file, [b"".join(pack_entry(e) for e in entries)])
        _write_all(self._index_file, [pack_frame(note, self._size)])

    def _roll(self) -> None:
        if self._segment_file >= 0:
            self._trim_zeros()
            os.fdatasync(self._segment_file)
        for file in (self._segment_file, self._index_file):
            if file >= 0:
                os.close(file)
        self.segment += 1
        self._size = self._extent = 0
        self._open_files()
        force = tuple(e.to_data() for e in self.entries.values())
        floor = min((n for n in (self.floor, self._unpublished) if n), default=0)
        header = pack_note(Note(self.mark, self.catalog, (), force, floor))
        self._write([pack_block(BlockKind.HEADER, header), header])
        os.fsync(self._segment_file)
        _sync_directory(self.directory)
        self._reveal(header, ())

    def _open_files(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT
        self._segment_file = os.open(segment_path(self.directory, self.segment), flags, 0o600)
        os.lseek(self._segment_file, self._size, os.SEEK_SET)
        self._index_file = os.open(index_path(self.directory, self.segment), flags | os.O_APPEND, 0o600)

    def _write(self, buffers: list[bytes | memoryview]) -> None:
        end = self._size + sum(len(b) for b in buffers)
        if end > self._extent:
            self._extent = end
            if end - self._size < AHEAD_BYTES // 4 and end + AHEAD_BYTES < self._segment_bytes:
                self._extent += os.pwrite(self._segment_file, _ZEROS, end)
        _write_all(self._segment_file, buffers)
        self._size = end

    def _trim_zeros(self) -> None:
        if self._extent > self._size:
            os.ftruncate(self._segment_file, self._size)
            self._extent = self._size

    def _guard(self, action: Any, *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except OSError as error:
            raise _unwritable(self.directory, error) from error


def _write_all(file: int, buffers: Sequence[bytes | memoryview]) -> None:
    # One writev for a group; what a short write leaves over (a nearly full disk) follows one by one until the disk refuses.
    total = sum(len(b) for b in buffers)
    written = os.writev(file, buffers)
    if written == total:
        return
    rest = memoryview(b"".join(buffers))[written:]
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_directory(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _lock(path: Path, patience: float) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # A killed worker's capture may need a moment to notice; after that it is somebody else's.
            if time.monotonic() > deadline:
                os.close(file)
                raise JournalLocked(f"another process writes the journal in {path.parent}") from None
            time.sleep(0.05)
        else:
            return file


def _unwritable(directory: Path, error: OSError) -> JournalUnwritable:
    reason = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up", errno.EROFS: "it is read-only"}
    words = reason.get(error.errno or 0, error.strerror or type(error).__name__)
    return JournalUnwritable(f"the journal in {directory} cannot be written: {words}", errno=error.errno or 0)
