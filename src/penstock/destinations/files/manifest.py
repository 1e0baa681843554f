"""Manifests: one line per epoch that names its files; the line, once it is durable, is what commits the epoch.

They lie in `_manifests/{flow}.{destination}/{upto without its last 28 bits}.jsonl`, in order of position: 256 MiB of the
source's log share a file. A last line without its end was never committed; readers pass over it and the next epoch cuts it off.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.epoch import Epoch
from penstock.destinations.base import Held
from penstock.destinations.files.disk import make_directory, sync_directory, sync_file, write_durably
from penstock.destinations.files.names import MANIFESTS

_PAGE_BITS = 28
_BLOCK = 64 << 10
_NAMES = ("flow", "destination", "source", "epoch", "generation", "after", "upto")


@dataclass(frozen=True)
class Published:
    """One file of an epoch; `path` is relative to the destination's directory."""

    path: str
    schema: str
    table: str
    version: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What one epoch published."""

    flow: str
    destination: str
    source: str
    epoch: int
    generation: int
    after: int
    upto: int
    files: tuple[Published, ...]
    part: int = 0
    """How many changes of the transaction that follows `upto` are in it too."""

    @property
    def held(self) -> Held:
        """What the destination holds when this is its newest."""
        return Held(self.upto, self.epoch, self.part)

    @classmethod
    def parse(cls, line: bytes) -> Manifest:
        """The manifest of a line."""
        data: dict[str, Any] = json.loads(line)
        files = tuple(Published(**file) for file in data.pop("files"))
        return cls(files=files, **data)


class Manifests:
    """The manifests of one flow's destination."""

    def __init__(self, root: Path, flow: str, destination: str) -> None:
        self._home = root / MANIFESTS / f"{flow}.{destination}"
        self._mark = str(self._home / "_generation")
        self._page: _Page | None = None

    def holds(self, epoch: Epoch) -> bool:
        """Whether the epoch is committed."""
        held = self.held()
        return held is not None and held.has(epoch)

    def held(self) -> Held | None:
        """What the newest manifest says; None before the first."""
        if self._page is not None and self._page.is_current() and self._page.held is not None:
            return self._page.held
        newest = self.newest()
        return None if newest is None else newest.held

    def add(self, epoch: Epoch, files: tuple[Published, ...]) -> None:
        """Commits the epoch, durably and at once."""
        path = self._home / f"{epoch.upto >> _PAGE_BITS:09X}.jsonl"
        if self._page is None or self._page.path != path or not self._page.is_current():
            self.close()
            make_directory(self._home)
            self._page = _Page(path)
        about = (epoch.flow, epoch.destination, epoch.source, epoch.number, epoch.generation, epoch.after, epoch.upto)
        part = {"part": epoch.upto_part} if epoch.upto_part else {}
        manifest = dict(zip(_NAMES, about, strict=True)) | part | {"files": [vars(file) for file in files]}
        try:
            self._page.append(json.dumps(manifest).encode() + b"\n", Held(epoch.upto, epoch.number, epoch.upto_part))
        except OSError:
            # What of the line has reached the disk is found out, and cut off, when the page is opened again.
            self.close()
            raise

    def settle(self) -> None:
        """Makes durable what a worker that was killed may have written and not synced, so that it can be relied on."""
        for name in self._names()[-1:]:
            sync_file(self._home / name)
            sync_directory(self._home)

    def newest(self) -> Manifest | None:
        """The manifest of the last epoch."""
        for name in reversed(self._names()):
            line = _last_line(self._home / name)
            if line is not None:
                return Manifest.parse(line)
        return None

    def __iter__(self) -> Iterator[Manifest]:
        # Numbers began anew when a ledger was lost under an earlier version; positions never went back.
        reached = (-1, 0)
        for name in self._names():
            with open(self._home / name, "rb") as page:
                for line in page:
                    if not line.endswith(b"\n"):
                        break
                    manifest = Manifest.parse(line)
                    if (manifest.upto, manifest.epoch) > reached:
                        reached = (manifest.upto, manifest.epoch)
                        yield manifest

    @property
    def generation(self) -> int:
        """The highest generation that has acted here; 0 before the first."""
        try:
            # Opened anew, because a file system of several machines may answer `stat` from its memory.
            file = os.open(self._mark, os.O_RDONLY)
        except FileNotFoundError:
            return 0
        try:
            return int(os.read(file, 64))
        finally:
            os.close(file)

    def raise_generation(self, generation: int) -> None:
        """Records that a worker of this generation has begun to act, durably."""
        make_directory(self._home)
        write_durably(Path(self._mark), f"{generation}\n")

    def close(self) -> None:
        """Gives back the open page."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._home) if name.endswith(".jsonl"))
        except FileNotFoundError:
            return []


class _Page:
    """A file of manifests, open to be appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            # What a killed worker has written may not be durable yet, nor the page's name.
            os.fsync(self._handle)
            sync_directory(path.parent)
            last = _last_line(path)
            self.held = Manifest.parse(last).held if last is not None else None
            self._size = _whole(path)
            os.ftruncate(self._handle, self._size)
        except BaseException:
            os.close(self._handle)
            raise

    def is_current(self) -> bool:
        """Whether nobody else has written, moved or removed the file."""
        found = os.fstat(self._handle)
        return found.st_size == self._size and found.st_nlink > 0

    def append(self, line: bytes, held: Held) -> None:
        """Adds a line, durably."""
        try:
            if os.write(self._handle, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._handle)
        except OSError:
            # A line that may not be durable must not be believed later.
            os.ftruncate(self._handle, self._size)
            raise
        self._size += len(line)
        self.held = held

    def close(self) -> None:
        """Closes the file."""
        os.close(self._handle)


def _whole(path: Path) -> int:
    """How many bytes of the file are whole lines."""
    with open(path, "rb") as page:
        end = page.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - _BLOCK)
            page.seek(begin)
            found = page.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return 0


def _last_line(path: Path) -> bytes | None:
    """The last whole line of the file; None when there is none."""
    end = _whole(path)
    if end == 0:
        return None
    with open(path, "rb") as page:
        begin, line = end, b""
        while begin > 0 and b"\n" not in line[:-1]:
            begin = max(0, begin - _BLOCK)
            page.seek(begin)
            line = page.read(end - begin)
        return line[line.rfind(b"\n", 0, -1) + 1 :]
