"""The shapes on disk: blocks, slices and notes."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any, BinaryIO, NamedTuple

from penstock.journal.checksum import crc32

MAGIC = b"PSJ1"
BLOCK = struct.Struct("<4sBxxxIQ")
"""Magic, kind, checksum of the payload, length of the payload; followed by the header's own checksum."""
HEADER_BYTES = BLOCK.size + 4

_SLICE = struct.Struct("<QQQQQQqQqIIIII4x")
_NOTE = struct.Struct("<IIIIQ")
_FRAME = struct.Struct("<IIQ")
FRAME_BYTES = _FRAME.size


class BlockKind(IntEnum):
    """What a block holds."""

    HEADER = 1
    NOTE = 2
    DATA = 3


class SliceFlag(IntFlag):
    """What a planner must know of a slice without reading it."""

    PIECE = 1
    """Part of one transaction; the other pieces stand beside it."""
    LAST_PIECE = 2
    """The piece with the commit."""
    KEY_CHANGE = 4
    TRUNCATE = 8
    SCHEMA = 16
    """The first transaction of the slice (or this transaction) brings a new table version."""
    STREAMED = 32
    """Piece of a transaction that arrived before it committed; the source's messages in it have another shape."""
    PARTLY_GONE = 64
    """Parts of the transaction were rolled back; its last piece names them."""
    RETOLD = 128
    """A table is described again as it was: something about it may have happened that the log does not show."""


class Slice(NamedTuple):
    """One visible stretch of a segment: whole transactions, or one piece of a big one.

    It carries what its bytes do not: for a piece the commit position, transaction id, commit time and the ordinal reached.
    """

    segment: int
    start: int
    end: int
    first: int
    """Position of the first transaction in it."""
    last: int
    """Position of the last transaction in it."""
    xid: int
    """Transaction of a piece, else 0."""
    committed_at: int
    """Commit time of a piece in µs since 1970, else 0."""
    ordinal: int
    """Changes of the transaction before this piece, else 0."""
    appended_at: int
    """When it became durable, in µs since 1970."""
    checksum: int
    changes: int
    transactions: int
    flags: int
    catalog: int
    """How many catalogue entries are in force at its start."""

    @property
    def size(self) -> int:
        """Bytes of log in it."""
        return self.end - self.start


@dataclass(frozen=True)
class Note:
    """What became visible with one group: slices in log order, new table versions, and how far the journal is complete."""

    mark: int
    """Everything that committed up to here is in the journal."""
    catalog: int
    """How many catalogue entries exist after this note."""
    slices: tuple[Slice, ...] = ()
    entries: tuple[dict[str, Any], ...] = field(default=())
    floor: int = 0
    """The oldest segment with pieces of a transaction that was still open then; 0 when none was."""


def pack_slices(slices: Sequence[Slice]) -> bytes:
    """Slices as bytes for a note or a lane."""
    return b"".join(_SLICE.pack(*s) for s in slices)


def unpack_slices(data: bytes) -> list[Slice]:
    """The slices that `pack_slices` wrote."""
    return [Slice._make(fields) for fields in _SLICE.iter_unpack(data)]


def pack_block(kind: BlockKind, payload: bytes | bytearray | memoryview) -> bytes:
    """The header that stands before `payload`."""
    return pack_header(kind, crc32(payload), len(payload))


def pack_header(kind: BlockKind, checksum: int, length: int) -> bytes:
    """A block's header with its own checksum."""
    head = BLOCK.pack(MAGIC, kind, checksum, length)
    return head + crc32(head).to_bytes(4, "little")


def unpack_header(head: bytes) -> tuple[BlockKind, int, int] | None:
    """Kind, payload checksum and payload length; None when the bytes are no header."""
    if len(head) < HEADER_BYTES or crc32(head[: BLOCK.size]) != int.from_bytes(head[BLOCK.size : HEADER_BYTES], "little"):
        return None
    magic, kind, checksum, length = BLOCK.unpack_from(head)
    return (BlockKind(kind), checksum, length) if magic == MAGIC else None


def pack_note(note: Note) -> bytes:
    """A note as the payload of a header or note block."""
    entries = json.dumps(note.entries, separators=(",", ":")).encode() if note.entries else b""
    return _NOTE.pack(len(note.slices), len(entries), note.catalog, note.floor, note.mark) + pack_slices(note.slices) + entries


def unpack_note(payload: bytes) -> Note:
    """The note that `pack_note` wrote."""
    count, length, catalog, floor, mark = _NOTE.unpack_from(payload)
    end = _NOTE.size + count * _SLICE.size
    entries = tuple(json.loads(payload[end : end + length])) if length else ()
    return Note(mark, catalog, tuple(unpack_slices(payload[_NOTE.size : end])), entries, floor)


def note_mark(payload: bytes) -> int:
    """The note's mark, at a fraction of what unpacking it costs; nothing in the note is after it."""
    mark: int = _NOTE.unpack_from(payload)[4]
    return mark


def pack_frame(payload: bytes, upto: int) -> bytes:
    """A record of an index or catalogue file; `upto` is the segment's length including what the record speaks of."""
    return _FRAME.pack(len(payload), _frame_checksum(payload, upto), upto) + payload


def _frame_checksum(payload: bytes, upto: int) -> int:
    # Seeded, because a stretch of zeros, as a crash can leave behind, would otherwise read as empty records.
    return crc32(payload, (upto ^ 0x50534A31) & 0xFFFFFFFF)


def read_frame(file: BinaryIO) -> bytes | None:
    """The record at which an open file stands, read alone; None when it is torn, damaged or not written yet."""
    head = file.read(FRAME_BYTES)
    if len(head) < FRAME_BYTES:
        return None
    # A damaged length may say anything.
    length = min(_FRAME.unpack(head)[0], os.fstat(file.fileno()).st_size)
    frames, _ = unpack_frames(head + file.read(length))
    return frames[0][0] if frames else None


def unpack_frames(data: bytes) -> tuple[list[tuple[bytes, int]], int]:
    """Every whole record with its `upto`, and the length of `data` they fill; the rest is torn, damaged or not written yet."""
    found: list[tuple[bytes, int]] = []
    at = 0
    while at + FRAME_BYTES <= len(data):
        length, checksum, upto = _FRAME.unpack_from(data, at)
        payload = data[at + FRAME_BYTES : at + FRAME_BYTES + length]
        if len(payload) < length or _frame_checksum(payload, upto) != checksum:
            break
        found.append((payload, upto))
        at += FRAME_BYTES + length
    return found, at
