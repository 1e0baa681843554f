"""A deadline in a page of memory that a process shares with its children: no message is needed, and no thread to send one."""

from __future__ import annotations

import mmap
import os
import struct

from penstock.core.clock import clock

EXPIRED = 75
"""Exit code of a child that ended because the deadline was near."""

# Native and aligned: written and read in one piece, so that no reader meets half of it.
_WORD = struct.Struct("d")


class DeadlinePage:
    """The parent's half; `file` is for `Deadline` in a child that it is passed to."""

    def __init__(self, at: float) -> None:
        self.file = os.memfd_create("penstock-deadline")
        os.ftruncate(self.file, _WORD.size)
        self._shared = mmap.mmap(self.file, _WORD.size)
        self.set(at)

    @property
    def at(self) -> float:
        """The deadline, by `clock`."""
        return float(_WORD.unpack_from(self._shared)[0])

    def set(self, at: float) -> None:
        """Moves the deadline, for everybody at once."""
        _WORD.pack_into(self._shared, 0, at)

    def close(self) -> None:
        """The deadline is over for everybody."""
        self.set(0.0)
        os.close(self.file)


class Deadline:
    """The child's half."""

    def __init__(self, file: int) -> None:
        self._shared = mmap.mmap(file, _WORD.size, prot=mmap.PROT_READ)

    def seconds_left(self) -> float:
        """How long the parent may still act, and its child with it."""
        return float(_WORD.unpack_from(self._shared)[0]) - clock()
