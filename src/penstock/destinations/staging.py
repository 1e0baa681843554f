"""Staged Arrow tables: any number of them behind each other in one file, read back without a copy.

Nothing is fsynced: what a crash leaves of a staged file is never read, its epoch is written again.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from penstock.core.epoch import Epoch

Part = tuple[int, int]
"""Offset and length of one table in a staged file; plain data, for receipts."""

# Arrow asks for buffers that begin at multiples of 64 bytes.
_ALIGNMENT = 64


def shelf(staging: Path, epoch: Epoch) -> Path:
    """The directory in which all attempts at an epoch stage their files."""
    return staging / f"{epoch.upto:016X}"


class StagedFile:
    """A file of tables, under a name that no other attempt uses; it appears with the first table."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.name = f"{secrets.token_hex(12)}.arrow"
        self._sink: pa.NativeFile | None = None

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._sink is not None:
            self._sink.close()

    def add(self, table: pa.Table) -> Part:
        """Appends a table and says where it is."""
        if self._sink is None:
            self._home.mkdir(parents=True, exist_ok=True)
            self._sink = pa.OSFile(str(self._home / self.name), "wb")
        sink = self._sink
        sink.write(b"\0" * (-sink.tell() % _ALIGNMENT))
        start = sink.tell()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return int(start), int(sink.tell() - start)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell()) if self._sink is not None else 0


class StagedReader:
    """Reads tables back out of an epoch's staged files; they share the file's pages, so they cost no memory of their own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._maps: dict[str, pa.MemoryMappedFile] = {}

    def read(self, name: str, part: Part) -> pa.Table:
        """The table at that place of the file."""
        if name not in self._maps:
            self._maps[name] = pa.memory_map(os.fspath(self._home / name))
        offset, length = part
        self._maps[name].seek(offset)
        return pa.ipc.open_stream(self._maps[name].read_buffer(length)).read_all()
