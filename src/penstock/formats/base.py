"""The format contracts: pure, no state between calls, no network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from penstock.core.batch import Batch
from penstock.core.schema import TableSchema


class FileWriter(ABC):
    """One open file of one table version; the same batches give the same bytes."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Appends the batch's changes in order; LEAVE rows are not changes of their own and are left out."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes that have been written so far; after `close`, those of the whole file."""

    @property
    @abstractmethod
    def buffered(self) -> int:
        """Bytes of changes that wait in memory."""

    def fits(self, batch: Batch) -> bool:
        """Whether the batch can follow what is in the file; otherwise it begins another one."""
        return True

    @abstractmethod
    def flush(self) -> None:
        """Writes what waits, so that memory can be had back; calling it at other moments gives other bytes."""

    @abstractmethod
    def close(self) -> None:
        """Ends the file; it is complete but not yet fsynced."""


class FileFormat(ABC):
    """Changes in files."""

    suffix: ClassVar[str]

    @abstractmethod
    def open(self, path: Path, table: TableSchema, source: str) -> FileWriter:
        """A new file at `path`; `source` is the source's identity for event ids."""

    @abstractmethod
    def read(self, path: Path, table: TableSchema | None = None) -> Iterator[pa.RecordBatch]:
        """The file's changes in the layout of `formats.layout`; a format whose files do not say their types needs the table."""


class RecordFormat(ABC):
    """Changes as records: one key and one value per change."""

    @abstractmethod
    def encode(self, batch: Batch, source: str) -> tuple[pa.Array, pa.Array]:
        """Keys and values (binary arrays) of the batch's changes, in order, LEAVE rows left out."""

    @abstractmethod
    def decode(self, values: pa.Array, table: TableSchema) -> pa.RecordBatch:
        """The changes back in the layout of `formats.layout`."""
