"""The executor half of loading: chunks copied into files, and what these files and the journal say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch
from penstock.core.schema import TableSchema
from penstock.errors import SourceError
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice
from penstock.sources.chunks import Chunk, ChunkReader, ChunkReceipt, Stopping, Touched, never
from penstock.sources.postgres import columns, copybinary, copytext, scan
from penstock.sources.postgres.load import forms, rows, statements, touched
from penstock.sources.postgres.load.copying import Copying
from penstock.sources.postgres.load.copying import warm as warm_copying
from penstock.sources.postgres.load.file import ChunkWriter, Foot
from penstock.sources.postgres.load.hold import Login
from penstock.sources.postgres.load.replica import Replica
from penstock.sources.postgres.load.session import Opened, Session, explained
from penstock.sources.postgres.load.visibility import Described, contains
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.wire import ReplicationConnection


class PostgresChunkReader(ChunkReader):
    """Keeps its connections from chunk to chunk: one to the primary, one to the replica where there is one."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        super().__init__(recipe)
        self._sessions: dict[bool, Session] = {}

    def read(
        self,
        chunk: Chunk,
        table: TableSchema,
        snapshot: str | None,
        path: Path,
        *,
        after: int = 0,
        spare: Path | None = None,
        stopping: Stopping = never,
    ) -> ChunkReceipt:
        """Copies the chunk into the file; a named snapshot is always the primary's."""
        began = time.monotonic()
        session = self._session(replica=snapshot is None and bool(self.recipe.get("replica")))
        try:
            opened = session.open(chunk, table, snapshot, after, stopping)
            assert session.connection is not None
            foot = self._copy(session.connection, chunk, table, opened, path, spare, stopping)
            session.end()
        except SourceError as error:
            user = session.connection.where.user if session.connection is not None else ""
            session.drop()
            meant = explained(error, chunk, user, {"table": chunk.qualified, "chunk": chunk.number})
            raise meant from (error if meant is not error else error.__cause__)
        except BaseException:
            session.drop()
            raise
        size = path.stat().st_size
        seconds = time.monotonic() - began
        return ChunkReceipt(foot.rows, size, opened.described, opened.position, seconds, foot.checksum)

    def decode(
        self,
        path: Path,
        table: TableSchema,
        *,
        position: int,
        ordinal_base: int,
        read_at: int,
        bucket: int = 0,
        buckets: int = 1,
    ) -> Iterator[Batch]:
        """The rows of one bucket."""
        return rows.decode(path, table, rows.Identity(position, ordinal_base, read_at), bucket, buckets)

    def contains(self, described: str, xids: pa.Array) -> pa.Array:
        """Whether the described snapshot contains the transactions."""
        return pa.array(contains(described, np.asarray(xids)))

    def running(self, described: str) -> list[int]:
        """The transactions that ran when the snapshot was taken, as the log has them."""
        return [xid & 0xFFFFFFFF for xid in Described.parse(described).running]

    def touched(
        self,
        journal: SliceReader,
        slices: Sequence[Slice],
        schema: str,
        name: str,
        *,
        outside: str,
        inside: str | None = None,
    ) -> Iterator[Touched]:
        """What transactions change that one snapshot does not contain and another does."""
        return touched.touched(journal, slices, schema, name, outside, inside)

    def first_outside(self, journal: SliceReader, slices: Sequence[Slice], described: str) -> int | None:
        """Where the first transaction commits that the snapshot lacks."""
        return touched.first_outside(journal, slices, described)

    def close(self) -> None:
        """Gives back the connections."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _copy(
        self,
        connection: ReplicationConnection,
        chunk: Chunk,
        table: TableSchema,
        opened: Opened,
        path: Path,
        spare: Path | None,
        stopping: Stopping,
    ) -> Foot:
        head = {
            "chunk": chunk.to_data(),
            "columns": [c.name for c in table.columns],
            "described": opened.described,
            "position": opened.position,
            "forms": opened.forms,
        }
        with ChunkWriter(path, head, spare) as writer:
            if not opened.exists:
                return writer.finish(0)
            binary = opened.forms is not None
            connection.start_copy(statements.copy(chunk, table, opened.name, binary=binary))
            copied = Copying(connection, writer, self.recipe.get("rate"), stopping, extra=int(binary)).run()
            return writer.finish(copied)

    def _session(self, *, replica: bool) -> Session:
        if replica not in self._sessions:
            iam = self.recipe.get("iam")
            flow = str(self.recipe["flow"])
            login = Login(str(self.recipe["dsn"]), flow, RdsIam.from_data(iam) if iam else None)
            other = Login(str(self.recipe["replica"]), flow, login.iam) if replica else None
            standby = Replica(other, str(self.recipe["system"])) if other else None
            self._sessions[replica] = Session(login, standby, binary=self.recipe.get("format") == "binary")
        return self._sessions[replica]


def warm() -> None:
    """Loads or compiles the kernels."""
    warm_copying()
    copytext.warm()
    copybinary.warm()
    columns.warm()
    forms.warm()
    scan.warm()
