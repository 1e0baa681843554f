"""The copying of one COPY: the server's frames, counted and not looked into, from the socket to the file."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from penstock.errors import ProtocolBroken, ReadStopped
from penstock.sources.chunks import Stopping
from penstock.sources.postgres.load import cells, checksum
from penstock.sources.postgres.load.file import ChunkWriter
from penstock.sources.postgres.wire import ReplicationConnection, raise_server_error

_BUFFER: Final = 512 << 10
"""What stays in a core's own cache from the socket to the file: with 2 MB readers took a fifth more CPU."""
_PAUSE: Final = 0.2
"""Seconds after which somebody who wants to stop is noticed, at the latest."""
_GULP: Final = 128 << 10
_LULL: Final = 0.001
"""Seconds in which more arrives, where much has already: the server sends in pieces of 8 kB, each of which would cost a call."""
# ReadyForQuery: the last thing that the server sends. Rows of text hold no zero byte, and a binary one that ends like this makes
# us look at what is there a little early.
_READY: Final = (b"Z\0\0\0\5T", b"Z\0\0\0\5E", b"Z\0\0\0\5I")


class Copying:
    """One COPY that has begun on the connection."""

    def __init__(
        self, connection: ReplicationConnection, writer: ChunkWriter, rate: int | None, stopping: Stopping, *, extra: int = 0
    ) -> None:
        """`extra` is how many frames there are that hold no row: the binary format has its trailer in one."""
        self._connection, self._writer, self._rate, self._stopping = connection, writer, rate, stopping
        self._extra = extra
        self._array = np.empty(_BUFFER, np.uint8)
        self._view = memoryview(self._array)  # type: ignore[arg-type]
        self._fill = 0
        self._began = time.monotonic()
        self._tag = b""

    def run(self) -> int:
        """Copies until the server is ready for the next command; how many rows there were."""
        rows, skip = -self._extra, 0
        ended = False
        while not ended:
            self._receive()
            # A row that began in the bytes before ends here, or goes on.
            at = min(skip, self._fill)
            skip -= at
            found, at, other = cells.count_rows(self._array, at, self._fill) if skip == 0 else (0, at, False)
            rows += found
            copied = min(at, self._fill)
            skip += at - copied
            self._writer.append(self._view[:copied])
            self._keep(copied)
            while other and not ended:
                ended, other = self._note()
            self._hold_back()
        if self._tag.split() != [b"COPY", str(rows).encode()]:
            raise ProtocolBroken(f"the server says {self._tag.decode(errors='replace')!r} after {rows} rows")
        return rows

    def _receive(self) -> None:
        """Fills the buffer until it is full or the server has nothing more to send."""
        while self._fill < len(self._view):
            count = self._connection.receive_into(self._view[self._fill :])
            self._fill += count
            if bytes(self._view[max(0, self._fill - 6) : self._fill]) in _READY:
                return
            if count == 0:
                self._check()
                self._connection.wait(_PAUSE)
            elif count < _GULP and self._writer.bytes > _GULP:
                time.sleep(_LULL)
        self._check()

    def _note(self) -> tuple[bool, bool]:
        """Takes the frame at the buffer's start, which is no row; whether it was the last, and whether to look for another."""
        size = 1 + int.from_bytes(self._view[1:5], "big")
        if size > len(self._view) or size < 5:
            raise ProtocolBroken("the server answered COPY with a message that is none")
        if size > self._fill:
            return False, False
        kind, payload = bytes(self._view[:1]), bytes(self._view[5:size])
        self._keep(size)
        if kind == b"E":
            raise_server_error(payload, self._connection.where)
        if kind not in (b"c", b"C", b"Z", b"N", b"S"):
            raise ProtocolBroken(f"the server answered COPY with a message of kind {kind!r}")
        if kind == b"C":
            self._tag = payload.rstrip(b"\0")
        return kind == b"Z", self._fill >= 5 and self._view[0] != ord("d")

    def _keep(self, used: int) -> None:
        rest = self._fill - used
        if used and rest:
            self._view[:rest] = bytes(self._view[used : self._fill])
        self._fill = rest

    def _hold_back(self) -> None:
        """Waits until the bytes so far fit the rate; meanwhile the server is kept waiting by the full socket."""
        if self._rate is None:
            return
        due = self._began + self._writer.bytes / self._rate
        while (left := due - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, _PAUSE))

    def _check(self) -> None:
        if self._stopping():
            raise ReadStopped("The read of a chunk was given up.")


def warm() -> None:
    """Loads or compiles the kernels."""
    cells.warm()
    checksum.warm()
