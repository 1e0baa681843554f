"""What a journal goes through before it is written again: torn tail cut off, index and catalogue made whole."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import JournalCorrupt
from penstock.journal.catalog import pack_entry, read_catalog
from penstock.journal.record import BlockKind, Note, pack_frame, unpack_frames, unpack_note
from penstock.journal.segment import catalog_path, index_path, scan_blocks, segment_numbers, segment_path


@dataclass
class Recovered:
    """Where writing goes on."""

    segment: int = 0
    """The segment to append to; 0 when the journal is new."""
    size: int = 0
    end: int = 0
    """Position of the last visible transaction."""
    mark: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)
    cut: int = 0
    """Bytes of unfinished work that were cut off."""


def recover(directory: Path) -> Recovered:
    """Cuts off what never became visible and mends index and catalogue from the segments; idempotent."""
    numbers = segment_numbers(directory)
    state = Recovered()
    if not numbers:
        return state
    for previous, number in itertools.pairwise(numbers):
        if number != previous + 1:
            raise JournalCorrupt(f"journal segment {previous + 1} is missing in {directory}", segment=previous + 1)
    notes, size = _mend_index(directory, numbers[-1])
    if not notes:
        # Not even the header survived: the segment was being made, and no reader has seen it. Its number is used again.
        state.cut += _remove(directory, numbers.pop())
        if not numbers:
            return state
        notes, size = _mend_index(directory, numbers[-1])
    # Pieces of a transaction that never committed may fill whole segments. Their bytes go, the segments stay: a reader that
    # follows the journal may already stand in them.
    for number in reversed(numbers):
        found, kept = _mend_index(directory, number)
        state.cut += _cut(segment_path(directory, number), kept)
        if len(found) > 1:
            break
    state.segment, state.size = numbers[-1], size
    state.mark = notes[-1].mark
    state.end = _last_position(directory, numbers)
    state.entries = _mend_catalog(directory, numbers, notes[-1].catalog)
    return state


def _cut(path: Path, size: int) -> int:
    """Cuts a segment to its valid length; returns how much of what went was more than zeros."""
    if path.stat().st_size == size:
        return 0
    written = _written(path, size)
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())
    return written


def _mend_index(directory: Path, number: int) -> tuple[list[Note], int]:
    """The segment's notes and the length they vouch for; the index file holds exactly these afterwards."""
    path = index_path(directory, number)
    data = path.read_bytes() if path.exists() else b""
    frames, valid = unpack_frames(data)
    size = segment_path(directory, number).stat().st_size
    if any(upto > size for _, upto in frames):
        raise JournalCorrupt(f"journal segment {number} is shorter than its index says: durable bytes are gone", segment=number)
    upto = frames[-1][1] if frames else 0
    added = [
        (block.payload, block.end)
        for block in scan_blocks(segment_path(directory, number), upto)
        if block.kind is not BlockKind.DATA and block.payload is not None
    ]
    if added or valid != len(data):
        # A note that was written and not yet synced when its writer was killed: durable first, visible afterwards.
        with segment_path(directory, number).open("rb") as segment:
            os.fsync(segment.fileno())
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(valid)
            file.seek(valid)
            file.write(b"".join(pack_frame(payload, end) for payload, end in added))
            file.flush()
            os.fsync(file.fileno())
        frames += added
    return [unpack_note(payload) for payload, _ in frames], frames[-1][1] if frames else 0


def _last_position(directory: Path, numbers: list[int]) -> int:
    for number in reversed(numbers):
        frames, _ = unpack_frames(index_path(directory, number).read_bytes())
        for payload, _ in reversed(frames):
            slices = unpack_note(payload).slices
            if slices:
                return slices[-1].last
    return 0


def _mend_catalog(directory: Path, numbers: list[int], count: int) -> list[dict[str, Any]]:
    """Every catalogue entry that can still be had; the file holds exactly these afterwards."""
    path = catalog_path(directory)
    entries, valid = read_catalog(path)
    size = path.stat().st_size if path.exists() else 0
    if (entries[-1]["seq"] if entries else 0) == count and valid == size:
        return entries
    found = {e["seq"]: e for e in entries}
    for number in numbers:
        _mend_index(directory, number)
        frames, _ = unpack_frames(index_path(directory, number).read_bytes())
        for payload, _ in frames:
            found.update((e["seq"], e) for e in unpack_note(payload).entries)
    entries = [found[seq] for seq in sorted(found) if seq <= count]
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(b"".join(pack_entry(e) for e in entries))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return entries


def _written(path: Path, start: int) -> int:
    """How much from byte `start` on is more than the zeros that a writer lays out ahead."""
    last = 0
    with path.open("rb") as file:
        file.seek(start)
        at = 0
        while piece := file.read(1 << 20):
            used = len(piece.rstrip(b"\0"))
            last = at + used if used else last
            at += len(piece)
    return last


def _remove(directory: Path, number: int) -> int:
    size = segment_path(directory, number).stat().st_size
    index_path(directory, number).unlink(missing_ok=True)
    segment_path(directory, number).unlink()
    return size
