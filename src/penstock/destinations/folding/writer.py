"""Executor half of destinations that hold tables: folds one bucket and stages what the driver is to apply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Op
from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.destinations.base import Receipt, TableOptions, Writer
from penstock.destinations.filesystem import mended
from penstock.destinations.folding import kernel
from penstock.destinations.folding.fold import Fold, Folded
from penstock.destinations.folding.staged import Chunk, stage
from penstock.destinations.staging import Staged
from penstock.destinations.unrepresentable import settle
from penstock.errors import TruncateRefused


class FoldingWriter(Writer):
    """Stages folded changes as Arrow; a destination says which odd values it holds and which types it takes."""

    options: TableOptions
    inserts_apart = False
    """Whether new rows are worth a part of their own."""
    refuses_rows: bool = False
    """Whether the destination may refuse rows when it commits, and has to know which change each row stands for."""

    def hold(self, batch: Batch) -> Batch:
        """The batch with every odd value in its place that the destination holds; what is left is odd for it too."""
        return batch

    def travel(self, rows: pa.Table, table: TableSchema) -> pa.Table:
        """The rows, or some columns of them, with the types that the destination takes."""
        return rows

    def write(self, epoch: Epoch, bucket: int, batches: Iterator[Batch]) -> Receipt:
        """Folds and stages one bucket, holding about two chunks of 64 MB in memory."""
        fold = Fold(named=self.refuses_rows and self.sets_aside)
        chunks: list[Chunk] = []
        tables: Counter[str] = Counter()
        nulled: Counter[str] = Counter()
        ignored: Counter[str] = Counter()
        with mended(self.place.staging), Staged(self.place.staging, epoch) as staged:
            for batch in self._wanted(batches, ignored):
                policy = self.options.on_unrepresentable
                batch = settle(self.hold(batch), policy, nulled, before=False, aside=self.aside, original=batch)
                for folded in fold.add(batch):
                    self._stage(staged, folded, chunks, tables)
            for folded in fold.end():
                self._stage(staged, folded, chunks, tables)
            place = staged.end()
        # Every bucket is given each TRUNCATE, and it is one all the same.
        counts = {"unrepresentable": nulled.total(), "truncates_ignored": 0 if bucket else ignored.total()}
        return {
            "rows": sum(tables.values()),
            "tables": dict(tables),
            "counts": {name: n for name, n in counts.items() if n},
            "nulled": dict(nulled),
            "chunks": chunks,
            **place,
        }

    def _stage(self, staged: Staged, folded: Folded, chunks: list[Chunk], tables: Counter[str]) -> None:
        table = folded.table
        tables[table.qualified] += folded.changes
        if folded.truncated:
            chunks[:] = [chunk for chunk in chunks if (chunk["schema"], chunk["table"]) != (table.schema, table.name)]
        chunks.append(stage(staged, folded, self.travel, apart=self.inserts_apart))

    def _wanted(self, batches: Iterator[Batch], ignored: Counter[str]) -> Iterator[Batch]:
        """The batches after the truncate policy; adds to `ignored`, by table, the TRUNCATEs that it leaves out."""
        for batch in batches:
            if self.options.on_truncate != "apply":
                rows = pc.not_equal(batch.op, pa.scalar(int(Op.TRUNCATE), pa.uint8()))
                if not pc.all(rows, min_count=0).as_py():
                    if self.options.on_truncate == "halt":
                        raise TruncateRefused(f"{batch.table.qualified} was truncated at the source", table=batch.table.qualified)
                    ignored[batch.table.qualified] += len(batch) - int(pc.sum(rows).as_py() or 0)
                    batch = batch.filter(rows)
            if len(batch):
                yield batch


def warm() -> None:
    """Compiles or loads the kernels that a lane runs."""
    kernel.warm()
