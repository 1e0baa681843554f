"""The inbox: the bytes of the replication stream between the socket and the journal."""

from __future__ import annotations

import mmap

import numpy as np

HEAD = 30
"""Bytes of a frame before the pgoutput message."""
_ASIDES = b"NS"
"""Kinds of frames that belong to the session and not to the stream: notices and changed parameters."""


class Inbox:
    """One buffer, used again and again: walked up to `at`, filled up to `fill`."""

    def __init__(self, size: int) -> None:
        self._size = size
        # Memory of its own, which is only had where it was used: an idle stream never fills more than a page.
        self._bytes = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array = np.frombuffer(self._bytes, np.uint8)
        self.view = memoryview(self._bytes)
        self.fill = 0
        self.at = 0

    def room(self) -> memoryview:
        """Where the next bytes of the stream go."""
        return self.view[self.fill :]

    def compact(self, keep: int) -> int:
        """Forgets what is before `keep` when that makes room; returns by how much the rest has moved to the front."""
        if keep == self.fill:
            self.fill = 0
        elif self.fill > self._size // 2:
            rest = self.fill - keep
            self._bytes.move(0, keep, rest)
            self.fill = rest
        else:
            return 0
        self.at -= keep
        return keep

    @property
    def following(self) -> int:
        """The byte after the frame at the position."""
        return self.at + 1 + self.number(1, 4)

    def number(self, offset: int, size: int) -> int:
        """A number that far into the frame at the position."""
        start = self.at + offset
        return int.from_bytes(self._bytes[start : start + size], "big")

    def message(self, most: int | None = None) -> bytes:
        """The frame's pgoutput message, or as much of it as is asked for."""
        start = self.at + HEAD
        return bytes(self._bytes[start : self.following if most is None else start + most])

    def frame(self) -> bytes:
        """The whole frame at the position."""
        return bytes(self._bytes[self.at : self.following])

    def cut_aside(self) -> bool:
        """Takes a whole notice or parameter report out of the stream, in which the server may put them anywhere."""
        start, following = self.at, self.following
        if self._bytes[start] not in _ASIDES or following > self.fill:
            return False
        # A slice holds the stream's frames only: a warning of the server in one could not be decoded later.
        self._bytes.move(start, following, self.fill - following)
        self.fill -= following - start
        return True

    def take_other(self) -> bytes | None:
        """A whole frame that is not part of the stream, its type byte and payload; None while it is not whole."""
        if self.fill - self.at < 5 or self.following > self.fill:
            return None
        frame = self.frame()
        self.at = self.following
        return frame[:1] + frame[5:]
