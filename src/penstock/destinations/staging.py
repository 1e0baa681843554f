"""Staged Arrow tables: any number of them behind each other, small ones inside the receipt, big ones in one file.

Nothing is fsynced: what a crash leaves of a staged file is never read, its epoch is written again.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from penstock.core.epoch import Epoch

Part = tuple[int, int]
"""Offset and length of one table among the staged ones; plain data, for receipts."""

# Arrow asks for buffers that begin at multiples of 64 bytes.
_ALIGNMENT = 64
# Creating, mapping and removing a file costs 0.3 to 2 ms, more than sending this much to the driver.
_INLINE_BYTES = 256 << 10


class Staged:
    """The tables that one attempt stages; its file, if it needs one, has a name that no other attempt uses."""

    def __init__(self, staging: Path, epoch: Epoch) -> None:
        self._path = staging / f"{_prefix(epoch.number)}{secrets.token_hex(12)}.arrow"
        self._sink: pa.NativeFile = pa.BufferOutputStream()
        self._on_disk = False

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._on_disk:
            self._sink.close()

    def add(self, table: pa.Table) -> Part:
        """Appends a table and says where it is."""
        if not self._on_disk and self._sink.tell() + table.nbytes > _INLINE_BYTES:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            buffered, self._sink, self._on_disk = self._sink.getvalue(), pa.OSFile(str(self._path), "wb"), True
            self._sink.write(buffered)
        sink = self._sink
        sink.write(b"\0" * (-sink.tell() % _ALIGNMENT))
        start = sink.tell()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return int(start), int(sink.tell() - start)

    def end(self) -> dict[str, Any]:
        """Ends the staging: what a receipt needs so that `StagedReader` finds the tables."""
        size = int(self._sink.tell())
        if self._on_disk:
            self._sink.close()
            return {"bytes": size, "file": self._path.name}
        return {"bytes": size, "inline": self._sink.getvalue().to_pybytes()}


class StagedReader:
    """Reads tables back out of one receipt; they share its bytes or its file's pages, and give them back one by one."""

    def __init__(self, staging: Path, receipt: Mapping[str, Any]) -> None:
        self._path = staging / receipt["file"] if "file" in receipt else None
        self._inline = receipt.get("inline", b"")

    def read(self, part: Part) -> pa.Table:
        """The table at that place."""
        offset, length = part
        if self._path is None:
            return pa.ipc.open_stream(pa.py_buffer(memoryview(self._inline)[offset : offset + length])).read_all()
        # One map per table: pages of a map over the whole file would count as the worker's memory until its end.
        skip = offset % mmap.ALLOCATIONGRANULARITY
        with open(self._path, "rb") as file:
            pages = mmap.mmap(file.fileno(), skip + length, access=mmap.ACCESS_READ, offset=offset - skip)
        return pa.ipc.open_stream(pa.py_buffer(memoryview(pages)[skip:])).read_all()


def discard(staging: Path, epoch: Epoch) -> None:
    """Removes what attempts at the epoch have left."""
    for name in _files(staging):
        if name.startswith(_prefix(epoch.number)):
            (staging / name).unlink(missing_ok=True)


def sweep(staging: Path, number: int) -> None:
    """Removes what attempts at epochs up to a committed one have left, and what earlier versions have, under other names."""
    for name in _files(staging):
        if name < _prefix(number + 1) or not name.startswith("e"):
            (staging / name).unlink(missing_ok=True)


def _prefix(number: int) -> str:
    """How the names of an epoch's files begin; in the order of epochs."""
    return f"e{number:015d}."


def _files(staging: Path) -> Iterator[str]:
    try:
        yield from (name for name in os.listdir(staging) if name.endswith(".arrow"))
    except FileNotFoundError:
        return
