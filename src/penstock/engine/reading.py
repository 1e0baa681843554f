"""The readers of chunks: Spark jobs that the driver's threads wait for, each with one task over a few chunks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock.engine.chunk_task import read_chunks
from penstock.engine.session import SparkHost
from penstock.errors import PenstockError, ReadStopped, SparkFailed, from_data
from penstock.journal.chunks import chunk_path
from penstock.ledger.loads import Load, LoadChunk
from penstock.sources.base import Source

Receipts = list[dict[str, Any]]


class Readers:
    """Reads groups of chunks; used by several threads at once."""

    def __init__(self, host: SparkHost, source: Source, kind: str, journal: Path, rate: int | None) -> None:
        """`rate` is the most bytes a second over all readers together."""
        self._host, self._source, self._kind, self._journal, self._rate = host, source, kind, journal, rate
        self._group = f"{source.flow}/loads"
        self._stopped = False

    def read(
        self, load: Load, chunks: Sequence[LoadChunk], snapshot: str | None, side_by_side: int
    ) -> tuple[Receipts, PenstockError | None]:
        """The receipts of the chunks that could be read, and why the others could not."""
        if self._stopped:
            return [], ReadStopped("the flow is being stopped")
        order = {
            "source": self._kind,
            "recipe": self._source.reading(self._rate // side_by_side if self._rate else None),
            "snapshot": snapshot,
            "after": load.low,
            "home": str(chunk_path(self._journal, load.id, "").parent / str(load.id)),
        }
        items = [{"id": c.id, "chunk": c.content["chunk"], "table": c.content["table"]} for c in chunks]
        try:
            context = self._host.context()
            context.setJobGroup(self._group, f"chunks of load {load.id}", interruptOnCancel=True)
            found = context.parallelize(items, 1).mapPartitions(partial(read_chunks, order)).collect()
        except PenstockError as error:
            return [], error
        except Exception as error:
            reason = str(error).partition("\n")[0][:200]
            return [], ReadStopped("the flow is being stopped") if self._stopped else SparkFailed(
                f"chunks were not read: {reason}"
            )
        receipts = [r for r in found if "error" not in r]
        errors = [from_data(r["error"]) for r in found if "error" in r]
        for r in found:
            if "error" in r and errors:
                errors[0].facts["load_chunk"] = r["id"]
        return receipts, errors[0] if errors else None

    def stop(self) -> None:
        """Gives up what is being read."""
        self._stopped = True
        if self._host.alive():
            self._host.context().cancelJobGroup(self._group)
