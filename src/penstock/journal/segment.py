"""Segments of a journal directory: their names, and the scan that reads a segment's blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.journal.checksum import crc32
from penstock.journal.record import HEADER_BYTES, BlockKind, unpack_header

_CHUNK = 4 << 20


def segment_path(directory: Path, number: int) -> Path:
    """The segment's data file."""
    return directory / f"{number:010d}.seg"


def index_path(directory: Path, number: int) -> Path:
    """The segment's index file."""
    return directory / f"{number:010d}.idx"


def catalog_path(directory: Path) -> Path:
    """The journal's catalogue file."""
    return directory / "catalog"


def segment_numbers(directory: Path) -> list[int]:
    """Numbers of the segments there are, in order."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(n[:-4]) for n in names if n.endswith(".seg") and n[:-4].isdigit())


class Block(NamedTuple):
    """A whole, verified block: `payload` is None for data, which is checked but not kept."""

    kind: BlockKind
    start: int
    end: int
    payload: bytes | None


def scan_blocks(path: Path, start: int = 0) -> Iterator[Block]:
    """The segment's whole blocks from byte `start` on, each verified; ends at the first one that is torn or damaged."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = start
        while at < size:
            file.seek(at)
            header = unpack_header(file.read(HEADER_BYTES))
            if header is None:
                return
            kind, checksum, length = header
            end = at + HEADER_BYTES + length
            if end > size:
                return
            kept = bytearray()
            actual, left = 0, length
            while left:
                piece = file.read(min(left, _CHUNK))
                if not piece:
                    return
                actual = crc32(piece, actual)
                if kind is not BlockKind.DATA:
                    kept += piece
                left -= len(piece)
            if actual != checksum:
                return
            yield Block(kind, at, end, None if kind is BlockKind.DATA else bytes(kept))
            at = end
