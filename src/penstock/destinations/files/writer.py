"""Executor half of the files destination: stages one bucket's changes as complete, fsynced, invisible files."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Op
from penstock.core.connectors import find
from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.destinations.base import Place, Receipt, Writer
from penstock.destinations.files.disk import side_by_side, sync_file
from penstock.destinations.files.names import staged_prefix, staging_directory
from penstock.destinations.files.options import FilesOptions
from penstock.destinations.filesystem import mended
from penstock.destinations.unrepresentable import settle
from penstock.formats.base import FileFormat, FileWriter

# What may wait in memory over all open files; one transaction may touch any number of tables.
_MOST_BUFFERED = 128 << 20
# A process may commonly open 1,024 files; a table over the limit goes on in another file.
_MOST_OPEN = 256


def file_format(options: FilesOptions) -> FileFormat:
    """The format that the options name, ready to write or read."""
    card = find("format", options.format)
    settings = card.options.model_validate({k: getattr(options, k) for k in card.options.model_fields if hasattr(options, k)})
    made: FileFormat = card.load("format")(settings)
    return made


@dataclass
class _Open:
    """A file being written."""

    path: Path
    writer: FileWriter
    about: dict[str, Any]


@dataclass
class _Attempt:
    """One try at one bucket: what is open, what is done, under names that no other try uses."""

    epoch: Epoch
    bucket: int
    home: Path
    format: FileFormat
    most: int
    spare: Path | None = None
    """An empty file that may become the first of this try."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    open: dict[TableSchema, _Open] = field(default_factory=dict)
    done: list[dict[str, Any]] = field(default_factory=list)
    unsynced: list[Path] = field(default_factory=list)
    """Whole files that are not durable yet."""
    numbers: Counter[tuple[str, str, int]] = field(default_factory=Counter)

    def write(self, batch: Batch) -> None:
        """Appends a batch to its table's file."""
        if batch.table in self.open and not self.open[batch.table].writer.fits(batch):
            self._end(batch.table)
        file = self.open.get(batch.table) or self._begin(batch.table)
        file.writer.write(batch)
        file.about["rows"] += len(batch) - _count(batch, Op.LEAVE)
        if file.writer.size >= self.most:
            self._end(batch.table)
        waiting = {table: f.writer.buffered for table, f in self.open.items()}
        if sum(waiting.values()) > _MOST_BUFFERED:
            self.open[max(waiting, key=lambda table: waiting[table])].writer.flush()

    def end(self) -> None:
        """Completes every open file."""
        for table in list(self.open):
            self._end(table)
        side_by_side(sync_file, self.unsynced)
        self.unsynced = []

    def _begin(self, table: TableSchema) -> _Open:
        if len(self.open) >= _MOST_OPEN:
            self._end(next(iter(self.open)))
        name = (table.schema, table.name, table.version)
        number = self.numbers[name]
        self.numbers[name] += 1
        path = self.home / f"{staged_prefix(self.epoch.number)}{self.token}.{len(self.done) + len(self.open):06d}.tmp"
        if self.spare is not None:
            spare, self.spare = self.spare, None
            # One that has been cleared away meanwhile is made by whoever opens the path.
            with contextlib.suppress(FileNotFoundError):
                os.rename(spare, path)
        about = {"schema": table.schema, "table": table.name, "version": table.version, "number": number, "rows": 0}
        self.open[table] = _Open(path, self.format.open(path, table, self.epoch.source), about)
        return self.open[table]

    def _end(self, table: TableSchema) -> None:
        file = self.open.pop(table)
        file.writer.close()
        self.unsynced.append(file.path)
        self.done.append({**file.about, "staged": file.path.name, "bytes": file.writer.size})


class FilesWriter(Writer):
    """Stages changes as files."""

    options: FilesOptions

    def __init__(self, place: Place, options: FilesOptions) -> None:
        super().__init__(place, options)
        self._format = file_format(options)
        self._home = staging_directory(options.root, place.flow, place.destination)
        self._spare: Path | None = None

    def rest(self) -> None:
        """Makes an empty file ahead: on a file system where many were removed lately that takes longer than to write it."""
        if self._spare is None:
            spare = self._home / f".spare.{secrets.token_hex(8)}.tmp"
            with contextlib.suppress(FileNotFoundError):
                os.close(os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                self._spare = spare

    def close(self) -> None:
        """Removes what was made ahead."""
        if self._spare is not None:
            with contextlib.suppress(OSError):
                self._spare.unlink(missing_ok=True)
            self._spare = None

    def write(self, epoch: Epoch, bucket: int, batches: Iterator[Batch]) -> Receipt:
        """Stages one bucket; the files are durable, and invisible until the driver publishes them."""
        nulled: Counter[str] = Counter()
        with mended(self.options.root):
            self._home.mkdir(parents=True, exist_ok=True)
            attempt = _Attempt(epoch, bucket, self._home, self._format, self.options.max_file_bytes, self._spare)
            try:
                for batch in batches:
                    batch = batch if bucket == 0 else _without_truncates(batch)
                    batch = settle(batch, self.options.on_unrepresentable, nulled, aside=self.aside)
                    if len(batch):
                        attempt.write(batch)
                attempt.end()
            finally:
                self._spare = attempt.spare
        tables: Counter[str] = Counter()
        for file in attempt.done:
            tables[f"{file['schema']}.{file['table']}"] += file["rows"]
        return {
            "rows": sum(tables.values()),
            "bytes": sum(file["bytes"] for file in attempt.done),
            "tables": dict(tables),
            "counts": {"unrepresentable": nulled.total()} if nulled else {},
            "nulled": dict(nulled),
            "files": attempt.done,
        }


def _count(batch: Batch, op: Op) -> int:
    return int(np.count_nonzero(batch.op.to_numpy(zero_copy_only=False) == op))


def _without_truncates(batch: Batch) -> Batch:
    """Every bucket is given each TRUNCATE; the log has it once, from bucket 0."""
    return batch.filter(pc.not_equal(batch.op, pa.scalar(int(Op.TRUNCATE), pa.uint8()))) if _count(batch, Op.TRUNCATE) else batch


def warm() -> None:
    """Compiles or loads the kernels that a lane runs."""
    from penstock.formats.kernels import event_id

    event_id.warm()
