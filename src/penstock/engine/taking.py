"""What a lane takes in: the stream's slices or a load's chunks, as batches, without what must be left out.

An epoch of the stream leaves out tables that are being loaded, and changes that a table's load has already brought. An epoch
of a backfill leaves out rows that a streamed change has touched since they were read, or brings them up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Image, Op
from penstock.core.schema import TableSchema
from penstock.engine.touched import Touched, among
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice
from penstock.sources.base import Decoder
from penstock.sources.chunks import ChunkReader

Takes = Callable[[str, str], bool]


class Taking:
    """One lane's way in; the same descriptor gives the same batches, as often as they are asked for."""

    def __init__(self, decoder: Decoder, chunks: Callable[[], ChunkReader], journal: SliceReader, takes: Takes) -> None:
        """`chunks` makes what knows chunks, when there are any; `takes` says which tables the destination has."""
        self._decoder, self._make_chunks, self._journal, self._takes = decoder, chunks, journal, takes
        self._made: ChunkReader | None = None
        self.again: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        """Keys of a backfill's rows that have to be read once more: a change has touched them and told only a part."""

    @property
    def _chunks(self) -> ChunkReader:
        if self._made is None:
            self._made = self._make_chunks()
        return self._made

    def batches(self, about: Mapping[str, Any], slices: Sequence[Slice], bucket: int, buckets: int) -> Iterator[Batch]:
        """The batches of one bucket; `about` is the descriptor."""
        self.again = {}
        side = about.get("side")
        if side is None or "only" in side:
            return self._stream(about, slices, bucket, buckets)
        return self._loaded(side, slices, bucket, buckets)

    def _stream(self, about: Mapping[str, Any], slices: Sequence[Slice], bucket: int, buckets: int) -> Iterator[Batch]:
        without = {(schema, table) for schema, table in about.get("without", ())}
        side = about.get("side") or {}
        only = {(schema, table) for schema, table in side["only"]} if "only" in side else None
        since = {(schema, table): (snapshot, until) for schema, table, snapshot, until in about.get("since", ())}

        def takes(table: TableSchema) -> bool:
            name = (table.schema, table.name)
            return name not in without and (only is None or name in only) and self._takes(*name)

        # The decoder keeps what it knows of tables as long as it is asked for the same ones.
        wanted = takes if without or only is not None else self._all
        for batch in self._decoder.decode(self._journal, slices, bucket, buckets, wanted):
            rule = since.get((batch.table.schema, batch.table.name))
            if rule is not None:
                shown = pc.and_(pc.less_equal(batch.position, rule[1]), self._chunks.contains(rule[0], batch.xid))
                batch = batch.filter(pc.invert(shown))
            if len(batch):
                yield batch

    def _all(self, table: TableSchema) -> bool:
        return self._takes(table.schema, table.name)

    def _loaded(self, side: Mapping[str, Any], slices: Sequence[Slice], bucket: int, buckets: int) -> Iterator[Batch]:
        touched: dict[tuple[str, str], Touched] = {}
        if side.get("touched"):
            names = {(c["table"]["schema"], c["table"]["name"]) for c in side["chunks"]}
            touched = self._touched(names, side["touched"]["snapshot"], slices, bucket, buckets)
        for about in side["chunks"]:
            table = TableSchema.from_data(about["table"])
            if not self._takes(table.schema, table.name):
                continue
            if about["empties"]:
                yield _emptied(table, about)
            place = {"position": about["position"], "ordinal_base": about["ordinal"], "read_at": about["read_at"]}
            found = touched.get((table.schema, table.name))
            for batch in self._chunks.decode(Path(about["path"]), table, **place, bucket=bucket, buckets=buckets):
                for part in (batch,) if found is None else found.brought_up(batch, side["touched"]["upto"]):
                    if len(part):
                        yield part
        for name, found in touched.items():
            mine = [c for c in side["chunks"] if (c["table"]["schema"], c["table"]["name"]) == name]
            if keys := found.unresolved(lambda changes, mine=mine: self._left_by(changes, mine)):  # type: ignore[misc]
                self.again[name] = keys

    def _left_by(self, changes: Batch, chunks: Sequence[Mapping[str, Any]]) -> Any:
        """Of each change whether the row may have come from the chunks.

        A row that came to its key from one that another chunk holds may be in neither, so all count of chunks that are ranges.
        Of rows that were read again only those count that are among them, in whatever bucket.
        """
        if not all(c["again"] for c in chunks) or changes.before is None:
            return np.ones(len(changes), np.bool_)
        came = np.zeros(len(changes), np.bool_)
        for about in chunks:
            table = TableSchema.from_data(about["table"])
            for batch in self._chunks.decode(Path(about["path"]), table, position=0, ordinal_base=0, read_at=0):
                came |= among(changes, batch)
        return came

    def _touched(
        self, names: set[tuple[str, str]], snapshot: str, slices: Sequence[Slice], bucket: int, buckets: int
    ) -> dict[tuple[str, str], Touched]:
        found: dict[tuple[str, str], Touched] = {}
        handles, self._decoder.gives_handles = self._decoder.gives_handles, True
        try:
            for batch in self._decoder.decode(self._journal, slices, bucket, buckets, lambda t: (t.schema, t.name) in names):
                later = batch.filter(pc.invert(self._chunks.contains(snapshot, batch.xid)))
                if len(later):
                    found.setdefault((batch.table.schema, batch.table.name), Touched()).see(later)
        finally:
            self._decoder.gives_handles = handles
        return found


def _emptied(table: TableSchema, about: Mapping[str, Any]) -> Batch:
    """A table that is read anew after a part of it was delivered begins empty."""
    one = pa.array([0], pa.int64())
    return Batch(
        table=table,
        rows=pa.RecordBatch.from_arrays([pa.nulls(1, c.type) for c in table.columns], schema=table.arrow),
        op=pa.array([int(Op.TRUNCATE)], pa.uint8()),
        position=pa.array([about["position"]], pa.int64()),
        ordinal=pa.array([about["ordinal"]], pa.int64()),
        xid=one,
        committed_at=pa.array([about["read_at"]], pa.int64()).view(pa.timestamp("us", "UTC")),
        unchanged=(None,) * len(table.columns),
        image=pa.array([int(Image.NONE)], pa.uint8()),
    )


def pack_keys(keys: Sequence[pa.RecordBatch]) -> bytes:
    """Keys as bytes for a receipt."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys[0].schema) as writer:
        for batch in keys:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def unpack_keys(data: bytes) -> list[pa.RecordBatch]:
    """The keys that `pack_keys` wrote."""
    return list(pa.ipc.open_stream(data))
