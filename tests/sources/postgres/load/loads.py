"""Tables of a test's database, planned, read into chunk files and decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg.sql import Identifier

from penstock.core.batch import Batch
from penstock.core.schema import TableSchema
from penstock.sources.chunks import Chunk, ChunkReceipt, LoadRules
from penstock.sources.postgres.load.reader import PostgresChunkReader
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.snapshot import Snapshot
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database


class Load:
    """One flow's source and one reader."""

    def __init__(self, database: Database, directory: Path, **options: Any) -> None:
        self.database, self.directory = database, directory
        given = {"dsn": database.dsn, "slot": f"s_{database.name}", **options}
        self.source = PostgresSource("flow", PostgresOptions(**given))
        self.reader = PostgresChunkReader(self.source.reading())
        self._files = 0

        self._tables: list[TableSchema] = []

    @property
    def tables(self) -> list[TableSchema]:
        """The tables as they were when they were first asked for."""
        self._tables = self._tables or self.source.discover()
        return self._tables

    def table(self, name: str) -> TableSchema:
        return next(t for t in self.tables if t.name == name)

    def plan(self, *tables: TableSchema, **rules: Any) -> list[Chunk]:
        """The chunks as an executor gets them."""
        planned = self.source.plan_chunks(tables or self.tables, LoadRules(**rules))
        return [Chunk.from_data(c.to_data()) for c in planned]

    def path(self) -> Path:
        self._files += 1
        return self.directory / f"chunk-{self._files}"

    def read(self, chunk: Chunk, snapshot: str | None = None, **more: Any) -> tuple[Path, ChunkReceipt]:
        path = self.path()
        table = more.pop("table", None) or self.table(chunk.name)
        return path, ChunkReceipt.from_data(self.reader.read(chunk, table, snapshot, path, **more).to_data())

    def decode(self, path: Path, table: TableSchema, bucket: int = 0, buckets: int = 1) -> list[Batch]:
        found = self.reader.decode(path, table, position=42, ordinal_base=100, read_at=7, bucket=bucket, buckets=buckets)
        return list(found)

    def rows(self, chunk: Chunk, snapshot: str | None = None) -> list[dict[str, Any]]:
        table = self.table(chunk.name)
        path, receipt = self.read(chunk, snapshot, table=table)
        found = [row for b in self.decode(path, table) for row in b.rows.to_pylist()]
        assert receipt.rows == len(found)
        return found

    def count(self, chunks: list[Chunk], snapshot: str | None = None) -> Counter[Any]:
        """How often each row is in the chunks."""
        return Counter(frozen(row) for chunk in chunks for row in self.rows(chunk, snapshot))

    def close(self) -> None:
        self.reader.close()
        self.source.close()


@contextmanager
def loading(database: Database, directory: Path, **options: Any) -> Iterator[Load]:
    """A load, closed afterwards."""
    load = Load(database, directory, **options)
    try:
        yield load
    finally:
        load.close()


def frozen(row: dict[str, Any]) -> Any:
    return tuple(sorted((name, repr(value)) for name, value in row.items()))


def truth(load: Load, table: TableSchema, where: str = "true", only: bool = True) -> Counter[Any]:
    """Every row as the server has it, read whole with the same kernels and no condition of ours."""
    names = ", ".join(Identifier(c.name).as_string(None) for c in table.columns)
    origin = Identifier(table.schema, table.name).as_string(None)
    with Snapshot(load.database.dsn, "flow") as snapshot:
        query = f"SELECT {names} FROM {'ONLY ' if only else ''}{origin} WHERE {where}"
        batches = list(snapshot.read(table, query, position=1, read_at=1))
    return Counter(frozen(row) for b in batches for row in b.rows.to_pylist())
