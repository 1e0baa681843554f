"""Parquet: changes in the columnar layout, zstd by default, the same batches always the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch
from penstock.core.card import Card
from penstock.core.options import Options
from penstock.core.schema import TableSchema
from penstock.formats.base import FileFormat, FileWriter
from penstock.formats.layout import layout_schema, to_layout

Compression = Literal["zstd", "snappy", "none"]


class ParquetOptions(Options):
    """Options of the parquet format."""

    compression: Compression = "zstd"
    """How pages are compressed."""


CARD = Card(
    kind="format",
    name="parquet",
    summary="Apache Parquet files in the columnar layout of changes",
    options=ParquetOptions,
    parts={"format": "penstock.formats.parquet:ParquetFormat"},
    capabilities={"file": True, "record": False},
)

# Readers decode a row group at a time and writers hold one in memory; 64 MiB of Arrow is about 300,000 rows of 190 bytes.
_GROUP_BYTES = 64 << 20
# Writing a value of 200 MB with statistics took 1.3 GB, without them 0.55 GB.
_HUGE_BYTES = 8 << 20
# A file of a few rows gains nothing from dictionaries and compression: 40 rows take 1.1 ms instead of 2.5, 20 kB instead of 14.
_SMALL_BYTES = 64 << 10
# These never repeat, so a dictionary page is built only to be thrown away.
_NEVER_REPEATED = frozenset(("__event_id", "__ordinal"))


class ParquetWriter(FileWriter):
    """One Parquet file; nothing is on disk before the first row group is full."""

    def __init__(self, path: Path, table: TableSchema, source: str, compression: Compression) -> None:
        self._path, self._source, self._compression = path, source, compression
        self._schema = layout_schema(table)
        self._file: Any = None
        self._sink: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._huge: bool | None = None
        self._buffered = 0

    @property
    def buffered(self) -> int:
        """Bytes of changes that wait for their row group to be full."""
        return self._buffered

    @property
    def size(self) -> int:
        """Bytes in the file so far."""
        return int(self._sink.tell()) if self._file is not None else 0

    def fits(self, batch: Batch) -> bool:
        """Huge values have files of their own, which are written without statistics."""
        return self._huge is None or self._huge == _is_huge(batch)

    def write(self, batch: Batch) -> None:
        """Appends the batch's changes; they reach the file when a row group is full, at `flush` or at `close`."""
        if self._huge is None:
            self._huge = _is_huge(batch)
        changes = to_layout(batch, self._source)
        self._waiting.append(changes)
        self._buffered += changes.nbytes
        if self._buffered >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what waits as a row group."""
        if self._file is None:
            self._open()
        if self._waiting:
            waiting, self._waiting, self._buffered = pa.Table.from_batches(self._waiting), [], 0
            self._file.write_table(waiting, row_group_size=max(1, waiting.num_rows))

    def close(self) -> None:
        """Writes what waits and the footer."""
        self.flush()
        self._file.close()
        self._sink.close()

    def _open(self) -> None:
        import pyarrow.parquet as pq

        small = self._buffered < _SMALL_BYTES
        compression = "none" if small else self._compression
        self._sink = pa.OSFile(str(self._path), "wb")
        self._file = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=compression,
            compression_level=1 if compression == "zstd" else None,
            use_dictionary=False if small else _repeated(self._schema),
            write_statistics=not self._huge,
        )


def _is_huge(batch: Batch) -> bool:
    """Whether a value is so big that statistics, which copy it several times, would cost more memory than it does itself."""
    if batch.nbytes < _HUGE_BYTES:
        return False
    both = [*batch.rows.columns, *(batch.before.columns if batch.before is not None else ())]
    texts = [column for column in both if pa.types.is_large_string(column.type) or pa.types.is_string(column.type)]
    texts += [column for column in both if pa.types.is_large_binary(column.type) or pa.types.is_binary(column.type)]
    return any((pc.max(pc.binary_length(column)).as_py() or 0) >= _HUGE_BYTES for column in texts)


def _repeated(schema: pa.Schema) -> list[str]:
    """Paths of the leaves that may gain from a dictionary."""
    paths = []
    for field in schema:
        if field.name == "__before":
            paths += [f"__before.{field.type.field(i).name}" for i in range(field.type.num_fields)]
        elif field.name not in _NEVER_REPEATED:
            paths.append(field.name)
    return paths


class ParquetFormat(FileFormat):
    """Changes as Parquet files."""

    suffix = "parquet"

    def __init__(self, options: ParquetOptions | None = None) -> None:
        self._compression = (options or ParquetOptions()).compression

    def open(self, path: Path, table: TableSchema, source: str) -> ParquetWriter:
        """A new file; the path appears with the first full row group, at the latest at `close`."""
        return ParquetWriter(path, table, source, self._compression)

    def read(self, path: Path, table: TableSchema | None = None) -> Iterator[pa.RecordBatch]:
        """The file's changes, row group by row group."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group).to_batches()


def warm() -> None:
    """Compiles or loads the kernels that writing needs."""
    from penstock.formats.kernels import event_id

    event_id.warm()
