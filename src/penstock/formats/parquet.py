"""Parquet: changes in the columnar layout, zstd by default, the same batches always the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

# Writers hold two in memory, every lane its own: with 24 MiB a lane that worked off a backlog took 150 MB, with 12 it takes 65.
# They are about 37,000 rows of ten columns; files are no bigger for it, nor slower to scan (DuckDB, 1.5 million rows).
_GROUP_BYTES = 12 << 20
# Writing a value of 200 MB with statistics took 1.3 GB, without them 0.55 GB.
_HUGE_BYTES = 8 << 20
# A file of a few rows gains nothing from dictionaries and compression: 40 rows take 1.1 ms instead of 2.5, 20 kB instead of 14.
# Nor from statistics of every column: a fifth of the time, and to look them up takes longer than to read the rows.
_SMALL_BYTES = 64 << 10
# Values that are encoded at once; Arrow's 1,024 took 5 % longer.
_BATCH = 16384
# Pages end by their bytes. Arrow also ends them at 20,000 rows, and columns that encode well then have many small ones, each with
# a compressor of its own: u of bench/backfill took 15 % longer so.
_PAGE_ROWS = 1 << 20
# Rows by which a file's encodings are chosen.
_SAMPLE = 2048
# Bytes from which on texts are long.
_LONG = 24
_DIFFERENCES = frozenset(t.id for t in (pa.int64(), pa.timestamp("us"), pa.time64("us")))
_DECIMAL = pa.decimal128(1).id
# Decimals of so many digits are stored as whole numbers.
_MOST_DIGITS = 18


class _Beside:
    """A thread that writes row groups, one at a time whatever the number of files, so that only one more lies in memory."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._latest: Future[None] | None = None

    def submit(self, write: Callable[[pa.Table], None], changes: pa.Table) -> Future[None]:
        """Begins to write when what was begun before is written; whoever began that gets its error."""
        if self._latest is not None:
            wait([self._latest])
        # Made here and not before: workers are forked, and threads are not.
        self._pool = self._pool or ThreadPoolExecutor(1, "parquet")
        self._latest = self._pool.submit(write, changes)
        return self._latest


_BESIDE = _Beside()


class ParquetWriter(FileWriter):
    """One Parquet file; nothing is on disk before the first row group is full."""

    def __init__(self, path: Path, table: TableSchema, source: str, compression: Compression) -> None:
        self._path, self._source, self._compression = path, source, compression
        self._schema = layout_schema(table)
        self._file: Any = None
        self._sink: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._huge: bool | None = None
        self._buffered = self._size = 0
        self._writing: Future[None] | None = None
        self._last = False

    @property
    def buffered(self) -> int:
        """Bytes of changes that wait for their row group to be full."""
        return self._buffered

    @property
    def size(self) -> int:
        """Bytes in the file, without the row group that may be being written: files are cut by it, always in the same place."""
        return self._size

    def fits(self, batch: Batch) -> bool:
        """Huge values have files of their own, which are written without statistics."""
        return self._huge is None or self._huge == _is_huge(batch)

    def write(self, batch: Batch) -> None:
        """Appends the batch's changes; they reach the file when a row group is full, at `flush` or at `close`."""
        if self._huge is None:
            self._huge = _is_huge(batch)
        changes = to_layout(batch, self._source)
        self._waiting.append(changes)
        # Its own share of memory that batches have in common, so that groups end in the same place whoever came before.
        self._buffered += changes.nbytes
        if self._buffered >= _GROUP_BYTES:
            self.flush()

    def _write(self, changes: pa.Table) -> None:
        self._file.write_table(changes, row_group_size=max(1, changes.num_rows))
        if self._huge:
            self._size = int(self._sink.tell())

    def _await(self) -> None:
        """Returns when the row group is written that is being written."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()
            self._size = int(self._sink.tell())

    def flush(self) -> None:
        """Writes what waits as a row group, while the next one is filled."""
        if self._file is None:
            self._open(pa.OSFile(str(self._path), "wb"), small=self._buffered < _SMALL_BYTES)
        if self._waiting:
            waiting, self._waiting, self._buffered = pa.Table.from_batches(self._waiting), [], 0
            if self._last or self._huge:
                self._write(waiting)
            else:
                self._await()
                self._writing = _BESIDE.submit(self._write, waiting)

    def close(self) -> None:
        """Writes what waits and the footer."""
        small = self._file is None and self._buffered < _SMALL_BYTES
        if small:
            # In memory first: Arrow writes every page by itself, and asks where it is before and after.
            self._open(pa.BufferOutputStream(), small=True)
        self._await()
        self._last = True
        self.flush()
        self._file.close()
        self._size = int(self._sink.tell())
        if small:
            with open(self._path, "wb") as file:
                file.write(self._sink.getvalue())
        self._sink.close()

    def _open(self, sink: Any, *, small: bool) -> None:
        import pyarrow.parquet as pq

        self._sink = sink
        compression = "none" if small else self._compression
        repeated, encodings = ([], {}) if small or not self._waiting else _encodings(self._waiting[0])
        self._file = pq.ParquetWriter(
            sink,
            self._schema,
            compression=compression,
            compression_level=1 if compression == "zstd" else None,
            use_dictionary=repeated or False,
            column_encoding=encodings or None,
            write_statistics=["__position"] if small else False if self._huge else _sought(self._schema),
            write_batch_size=_BATCH,
            max_rows_per_page=_PAGE_ROWS,
            store_decimal_as_integer=True,
        )


def _is_huge(batch: Batch) -> bool:
    """Whether a value is so big that statistics, which copy it several times, would cost more memory than it does itself."""
    if batch.rows.get_total_buffer_size() < _HUGE_BYTES:
        return False
    both = [*batch.rows.columns, *(batch.before.columns if batch.before is not None else ())]
    texts = [column for column in both if pa.types.is_large_string(column.type) or pa.types.is_string(column.type)]
    texts += [column for column in both if pa.types.is_large_binary(column.type) or pa.types.is_binary(column.type)]
    return any((pc.max(pc.binary_length(column)).as_py() or 0) >= _HUGE_BYTES for column in texts)


def _sought(schema: pa.Schema) -> list[str]:
    """Nobody looks for old rows by a range, nor for events by their ids: position and ordinal say the same.

    The least and greatest of texts that are no key tell little of changes, which stand in log order: to compare them took a tenth
    of the time of a load of ten columns.
    """
    key = set(json.loads(schema.metadata[b"key"]))
    texts = {f.name for f in schema if _is_text(f.type) and (f.metadata or {}).get(b"name", b"").decode() not in key}
    return [name for name in schema.names if name == "__op" or name not in {*texts, "__before"}]


class _Leaf(NamedTuple):
    """A column of the file."""

    path: str
    type: pa.DataType
    sample: pa.Array


def _leaves(waiting: pa.RecordBatch) -> Iterator[_Leaf]:
    for field, column in zip(waiting.schema, waiting.columns, strict=True):
        few = column.slice(0, _SAMPLE)
        if field.name != "__before":
            yield _Leaf(field.name, field.type, few)
            continue
        for i, inner in enumerate(field.type):
            yield _Leaf(f"__before.{inner.name}", inner.type, few.field(i))


def _encodings(waiting: pa.RecordBatch) -> tuple[list[str], dict[str, str]]:
    """Paths of the leaves that gain from a dictionary, and the encodings of others.

    Of five million rows of ten columns, whole numbers and moments as differences took a fifth of the CPU and of the space that
    they take as they are. A dictionary of different texts is built only to be thrown away: long ones are better apart from
    their lengths, short ones as they are.
    """
    repeated, others = [], {}
    for path, type_, sample in _leaves(waiting):
        if type_.id in _DIFFERENCES or (type_.id == _DECIMAL and type_.precision <= _MOST_DIGITS):
            others[path] = "DELTA_BINARY_PACKED"
        elif pa.types.is_list(type_):
            repeated.append(path)
        elif _is_text(type_) and path != "__event_id":
            known = sample.drop_null()
            if 2 * len(known.unique()) <= len(known):
                repeated.append(path)
            elif pc.mean(pc.binary_length(known)).as_py() >= _LONG:
                others[path] = "DELTA_LENGTH_BYTE_ARRAY"
    return repeated, others


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


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
