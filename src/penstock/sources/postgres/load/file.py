"""The file of a chunk: a head that says what it is, the server's COPY frames unchanged, and a foot that says that it is whole.

    head    magic, length and checksum of the JSON that follows
    block   magic, length, checksum of everything in blocks up to its end; then frames, cut anywhere
    foot    magic, checksum of all blocks, rows, bytes of frames, checksum of the foot itself

It is written under a name of its own and gets its path when it is whole and durable; a name that ends in .part is a leftover.
Files whose blocks carry a CRC, as they did before, are still read: a load may have begun before the code was replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, Self

from penstock.errors import ChunkDamaged, JournalUnwritable
from penstock.sources.postgres.load.checksum import xxh64

PARTIAL: Final = ".part"
_HEAD: Final = struct.Struct("<4sII")
_MOST_HEAD: Final = 256 << 20


class _Form(NamedTuple):
    """How blocks and foot are written, and the checksum of what follows something that has one already."""

    block: struct.Struct
    foot: struct.Struct
    checksum: Callable[[Any, int], int]


_FORMS: Final = {
    b"PSC1": _Form(struct.Struct("<4sII"), struct.Struct("<4sIQQ"), zlib.crc32),
    b"PSC2": _Form(struct.Struct("<4sIQ"), struct.Struct("<4sQQQ"), xxh64),
}
_MAGIC: Final = b"PSC2"
_NOW: Final = _FORMS[_MAGIC]


class Foot(NamedTuple):
    """What a whole file says of itself."""

    checksum: int
    rows: int
    bytes: int


class ChunkWriter:
    """Writes one file; leaving the block without `finish` leaves nothing behind."""

    def __init__(self, path: Path, head: Mapping[str, Any], spare: Path | None = None) -> None:
        """`spare` is a file that nobody needs any more, whose room is taken: a new one of that size costs twice the CPU."""
        self._path = path
        self._partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}")
        self._checksum = 0
        self.bytes = 0
        self._finished = False
        with _writing(path):
            self._file = self._opened(spare)
            try:
                data = json.dumps(head, separators=(",", ":")).encode()
                self._put(_HEAD.pack(_MAGIC, len(data), zlib.crc32(data)), data)
            except BaseException:
                self.__exit__(None, None, None)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if not self._finished:
            with contextlib.suppress(OSError):
                self._partial.unlink()

    def append(self, frames: memoryview) -> None:
        """Adds bytes of whole or cut frames."""
        if not frames:
            return
        self._checksum = _NOW.checksum(frames, self._checksum)
        self.bytes += len(frames)
        with _writing(self._path):
            self._put(_NOW.block.pack(b"PSCB", len(frames), self._checksum), frames)

    def finish(self, rows: int) -> Foot:
        """Makes the file durable and gives it its path."""
        foot = _NOW.foot.pack(b"PSCE", self._checksum, rows, self.bytes)
        with _writing(self._path):
            self._put(foot, zlib.crc32(foot).to_bytes(4, "little"))
            self._file.truncate()
            os.fsync(self._file.fileno())
            os.replace(self._partial, self._path)
            self._finished = True
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        return Foot(self._checksum, rows, self.bytes)

    def _opened(self, spare: Path | None) -> BinaryIO:
        if spare is not None:
            with contextlib.suppress(OSError):
                spare.rename(self._partial)
                return self._partial.open("r+b", buffering=0)
        return self._partial.open("wb", buffering=0)

    def _put(self, *parts: bytes | memoryview) -> None:
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        while left:
            count = os.writev(self._file.fileno(), left)
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if left:
                left[0] = left[0][count:]


class ChunkFile:
    """Reads one whole file, block by block, each verified before it is handed out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise self._damaged(f"cannot be opened: {error.strerror}") from error
        try:
            self._form, self.head, begin = self._read_head()
            self.foot = self._read_foot()
            self._file.seek(begin)
        except BaseException:
            self._file.close()
            raise
        self._checksum = 0
        self._expected = 0
        self._taken = 0
        self._left = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def next_size(self) -> int:
        """Size of the block that `read_into` would read; 0 at the end."""
        if self._left or self._taken == self.foot.bytes:
            return self._left
        magic, size, expected = self._form.block.unpack(self._exactly(self._form.block.size))
        length, self._expected = int(size), int(expected)
        if magic != b"PSCB" or length == 0 or self._taken + length > self.foot.bytes:
            raise self._damaged("does not have the form that its foot says")
        self._left = length
        return length

    def read_into(self, view: memoryview) -> int:
        """Reads the next block, which must have room; how many bytes it has."""
        size = self.next_size()
        if self._file.readinto(view[:size]) != size:  # type: ignore[attr-defined]
            raise self._damaged("ends too early")
        self._checksum = self._form.checksum(view[:size], self._checksum)
        if self._checksum != self._expected:
            raise self._damaged("has lost its checksum")
        self._taken += size
        self._left = 0
        if self._taken == self.foot.bytes and self._checksum != self.foot.checksum:
            raise self._damaged("has another checksum than its foot says")
        return size

    def _read_foot(self) -> Foot:
        size = self._file.seek(0, os.SEEK_END)
        foot = self._form.foot
        self._file.seek(max(0, size - foot.size - 4))
        data = self._exactly(foot.size + 4)
        magic, checksum, rows, length = foot.unpack_from(data)
        if magic != b"PSCE" or zlib.crc32(data[: foot.size]) != int.from_bytes(data[foot.size :], "little"):
            raise self._damaged("is not whole")
        return Foot(checksum, rows, length)

    def _read_head(self) -> tuple[_Form, dict[str, Any], int]:
        """The file's form, what its head says, and where its blocks begin."""
        magic, length, checksum = _HEAD.unpack(self._exactly(_HEAD.size))
        data = self._exactly(length) if magic in _FORMS and length <= _MOST_HEAD else b""
        if not data or zlib.crc32(data) != checksum:
            raise self._damaged("has no head")
        found = json.loads(data)
        assert isinstance(found, dict)
        return _FORMS[magic], found, self._file.tell()

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise self._damaged("ends too early")
        return data

    def _damaged(self, reason: str) -> ChunkDamaged:
        return ChunkDamaged(f"the chunk file {self._path.name} {reason}", file=self._path.name)


@contextlib.contextmanager
def _writing(path: Path) -> Any:
    try:
        yield
    except OSError as error:
        raise JournalUnwritable(f"the chunk file {path.name} cannot be written: {error.strerror}", file=path.name) from error
