"""A chunk's file: what is written is read, every damage is noticed, and files of the code before are still read."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from penstock.errors import ChunkDamaged
from penstock.sources.postgres.load.checksum import xxh64
from penstock.sources.postgres.load.file import ChunkFile, ChunkWriter

BLOCKS = (bytes(range(100)), b"x" * 39, b"one")


def write(path: Path, spare: Path | None = None) -> None:
    """A small file of three blocks."""
    with ChunkWriter(path, {"a": 1}, spare) as writer:
        for block in BLOCKS:
            writer.append(memoryview(block))
        writer.finish(7)


def read(path: Path) -> tuple[object, bytes]:
    """What the file's head says, and its frames."""
    room = bytearray(4096)
    with ChunkFile(path) as file:
        at = 0
        while file.next_size():
            at += file.read_into(memoryview(room)[at:])
        assert file.foot.rows == 7
        return file.head, bytes(room[:at])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_checksum_is_xxh64(data: bytes, expected: int) -> None:
    assert xxh64(data) == expected


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    write(path)
    assert read(path) == ({"a": 1}, b"".join(BLOCKS))
    whole = path.read_bytes()
    for at in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            with pytest.raises(ChunkDamaged):
                read(path)


@pytest.mark.parametrize("size", [0, 1, 10_000])
def test_a_spare_file_is_written_over_whatever_its_size(tmp_path: Path, size: int) -> None:
    path, spare, fresh = tmp_path / "chunk", tmp_path / "spare", tmp_path / "fresh"
    spare.write_bytes(b"s" * size)
    file = spare.stat().st_ino
    write(path, spare)
    write(fresh)
    assert path.read_bytes() == fresh.read_bytes() and path.stat().st_ino == file
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chunk", "fresh"]


def test_a_spare_file_that_is_gone_is_done_without(tmp_path: Path) -> None:
    write(tmp_path / "chunk", tmp_path / "gone")
    assert read(tmp_path / "chunk") == ({"a": 1}, b"".join(BLOCKS))


def test_a_file_that_is_given_up_takes_its_spare_along(tmp_path: Path) -> None:
    (tmp_path / "spare").write_bytes(b"s")
    with ChunkWriter(tmp_path / "chunk", {}, tmp_path / "spare") as writer:
        writer.append(memoryview(b"x"))
    assert list(tmp_path.iterdir()) == []


def test_blocks_that_changed_places_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    with ChunkWriter(path, {}) as writer:
        for block in (b"a" * 64, b"b" * 64):
            writer.append(memoryview(block))
        writer.finish(7)
    whole = path.read_bytes()
    first, second = whole.index(b"PSCB"), whole.rindex(b"PSCB")
    foot = whole.rindex(b"PSCE")
    path.write_bytes(whole[:first] + whole[second:foot] + whole[first:second] + whole[foot:])
    with pytest.raises(ChunkDamaged):
        read(path)


def test_file_of_a_load_that_began_before_an_upgrade_is_read(tmp_path: Path) -> None:
    """As it was written while blocks had a CRC."""
    path, head, checksum = tmp_path / "chunk", json.dumps({"a": 1}).encode(), 0
    with path.open("wb") as file:
        file.write(struct.pack("<4sII", b"PSC1", len(head), zlib.crc32(head)) + head)
        for block in BLOCKS:
            checksum = zlib.crc32(block, checksum)
            file.write(struct.pack("<4sII", b"PSCB", len(block), checksum) + block)
        foot = struct.pack("<4sIQQ", b"PSCE", checksum, 7, sum(map(len, BLOCKS)))
        file.write(foot + zlib.crc32(foot).to_bytes(4, "little"))
    assert read(path) == ({"a": 1}, b"".join(BLOCKS))


def test_file_of_a_later_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    write(path)
    path.write_bytes(path.read_bytes().replace(b"PSC2", b"PSC3"))
    with pytest.raises(ChunkDamaged, match="has no head"):
        read(path)
