"""The stdout destination: changes as JSON lines on the worker's standard output, for trying things."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Op
from penstock.core.card import Card
from penstock.core.epoch import Epoch
from penstock.core.finding import Finding
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, DestinationOptions, Held, Place, Receipt, Writer
from penstock.destinations.filesystem import mended
from penstock.destinations.staging import Staged, StagedReader, discard
from penstock.destinations.unrepresentable import settle
from penstock.observe import failpoints


class StdoutOptions(DestinationOptions):
    """Options of the stdout destination."""


CARD = Card(
    kind="destination",
    name="stdout",
    summary="JSON lines on the worker's standard output, in log order, for trying things",
    options=StdoutOptions,
    parts={
        "destination": "penstock.destinations.stdout:StdoutDestination",
        "writer": "penstock.destinations.stdout:StdoutWriter",
    },
    capabilities={
        "delivery": "at least once: an epoch that a crash interrupted is printed again, from its beginning",
        "shape": "log",
        "needs_key": False,
        "deletes": True,
        "truncate": True,
        "key_changes": True,
        "holds_position": False,
        "max_wait": 0.0,
        "max_bytes": 64 << 20,
    },
)

# Lines that are joined and written together.
_BLOCK_ROWS = 65_536
_PLACE = Path("standard output")


class StdoutWriter(Writer):
    """Stages lines with the position and ordinal that they are sorted by."""

    options: StdoutOptions

    def write(self, epoch: Epoch, bucket: int, batches: Iterator[Batch]) -> Receipt:
        """Encodes one bucket; nothing is printed before the commit."""
        from penstock.formats.json.format import lines
        from penstock.formats.layout import without_leaves

        tables: Counter[str] = Counter()
        nulled: Counter[str] = Counter()
        parts = []
        with mended(self.place.staging), Staged(self.place.staging, epoch) as staged:
            for batch in batches:
                batch = without_leaves(settle(batch, self.options.on_unrepresentable, nulled, aside=self.aside))
                if bucket:
                    batch = batch.filter(pc.not_equal(batch.op, pa.scalar(int(Op.TRUNCATE), pa.uint8())))
                if len(batch):
                    columns = {"position": batch.position, "ordinal": batch.ordinal, "line": lines(batch, epoch.source, "\n")}
                    parts.append(staged.add(pa.table(columns)))
                    tables[batch.table.qualified] += len(batch)
            place = staged.end()
        counts = {"unrepresentable": nulled.total()} if nulled else {}
        about = {"tables": dict(tables), "counts": counts, "nulled": dict(nulled), "parts": parts}
        return {"rows": sum(tables.values()), **about, **place}


class StdoutDestination(Destination):
    """Prints epochs."""

    options: StdoutOptions

    def __init__(self, place: Place, options: StdoutOptions) -> None:
        super().__init__(place, options)
        self._printed = 0

    def check(self) -> list[Finding]:
        """Standard output is always there."""
        return [Finding("stdout", True, "writable")]

    def prepare(self, tables: Sequence[TableSchema]) -> None:
        """Nothing to prepare."""

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Prints the epoch's lines by position and ordinal; an epoch that this process has printed is not printed again."""
        with mended(self.place.staging):
            if epoch.number > self._printed:
                failpoints.reach("destination.before_publish")
                self._print([part for receipt in receipts for part in self._parts(receipt)])
                self._printed = epoch.number
                failpoints.reach("destination.after_publish")
            discard(self.place.staging, epoch)

    def committed(self) -> Held | None:
        """Standard output holds no position."""
        return None

    def abort(self, epoch: Epoch) -> None:
        """Removes staged lines."""
        with mended(self.place.staging):
            discard(self.place.staging, epoch)

    def _parts(self, receipt: Receipt) -> list[pa.Table]:
        reader = StagedReader(self.place.staging, receipt)
        return [reader.read((part[0], part[1])) for part in receipt["parts"]]

    def _print(self, parts: list[pa.Table]) -> None:
        if not parts:
            return
        whole = pa.concat_tables(parts)
        order = np.lexsort((_numbers(whole.column("ordinal")), _numbers(whole.column("position"))))
        out: Any = getattr(sys.stdout, "buffer", None)
        for start in range(0, len(order), _BLOCK_ROWS):
            text = whole.column("line").take(pa.array(order[start : start + _BLOCK_ROWS]))
            with mended(_PLACE):
                for chunk in text.chunks:
                    content = _content(chunk)
                    out.write(content) if out is not None else sys.stdout.write(bytes(content).decode())
                sys.stdout.flush()
            failpoints.reach("destination.in_publish")


def _content(lines: pa.Array) -> memoryview:
    """The lines as they lie behind each other in memory."""
    ends = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(lines.buffers()[2])[ends[0] : ends[-1]]


def _numbers(column: pa.ChunkedArray) -> Any:
    return column.combine_chunks().to_numpy(zero_copy_only=False)


def warm() -> None:
    """Compiles or loads the kernels that a lane runs."""
    from penstock.formats.json import format

    format.warm()
