"""The readers of chunks: lanes that stand while tables are read, each of which takes a group of chunks at a time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.engine.lanes import Lanes
from penstock.engine.session import SparkHost
from penstock.engine.switchboard import Switchboard
from penstock.errors import PenstockError, ReadStopped, SparkFailed, from_data
from penstock.journal.chunks import chunk_path
from penstock.ledger.loads import Load, LoadChunk
from penstock.sources.base import Source

Receipts = list[dict[str, Any]]


def items_of(chunks: Sequence[LoadChunk], spares: Sequence[str]) -> list[dict[str, Any]]:
    """Chunks as a reader is told of them, the first with a file to write over; there are at most as many."""
    pairs = itertools.zip_longest(chunks, spares)
    return [{"id": c.id, "chunk": c.content["chunk"], "table": c.content["table"], "spare": spare} for c, spare in pairs]


class Readers:
    """Reads groups of chunks; used by several threads at once, each of which has a lane for the time."""

    def __init__(self, host: SparkHost, board: Switchboard, source: Source, kind: str, journal: Path, rate: int | None) -> None:
        """`rate` is the most bytes a second over all readers together."""
        self._host, self._board, self._source, self._kind, self._journal, self._rate = host, board, source, kind, journal, rate
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._idle: list[Lanes] = []
        self._busy: set[Lanes] = set()
        self._stopped = False

    def read(
        self, load: Load, chunks: Sequence[LoadChunk], snapshot: str | None, side_by_side: int, spares: Sequence[str] = ()
    ) -> tuple[Receipts, PenstockError | None]:
        """The receipts of the chunks that could be read, and why the others could not; `spares` are files to write over."""
        order = {
            "recipe": self._source.reading(self._rate // side_by_side if self._rate else None),
            "snapshot": snapshot,
            "after": load.low,
            "home": str(chunk_path(self._journal, load.id, "").parent / str(load.id)),
        }
        items = items_of(chunks, spares)
        lane = self._take()
        if lane is None:
            return [], ReadStopped("the flow is being stopped")
        try:
            lane.ask([{"order": order, "items": items}])
            found = lane.gather()[0]["found"]
        except PenstockError as error:
            return [], ReadStopped("the flow is being stopped") if self._stopped else error
        except Exception as error:
            reason = str(error).partition("\n")[0][:200]
            return [], SparkFailed(f"chunks were not read: {reason}")
        finally:
            self._put_back(lane)
        receipts = [r for r in found if "error" not in r]
        errors = [from_data(r["error"]) for r in found if "error" in r]
        for r in found:
            if "error" in r and errors:
                errors[0].facts["load_chunk"] = r["id"]
        return receipts, errors[0] if errors else None

    def rest(self) -> None:
        """Gives back the lanes, and with them the connections, that have nothing to do."""
        with self._lock:
            idle, self._idle = self._idle, []
        for lane in idle:
            lane.close()

    def stop(self) -> None:
        """Gives up what is being read."""
        with self._lock:
            self._stopped = True
            busy = list(self._busy)
        for lane in busy:
            lane.interrupt()
        self.rest()

    def _take(self) -> Lanes | None:
        with self._lock:
            if self._stopped:
                return None
            if self._idle:
                lane = self._idle.pop()
            else:
                setup = {"reads": self._kind}
                lane = Lanes(self._host, self._board, f"{self._source.flow}/loads/{next(self._numbers)}", setup, 1)
            self._busy.add(lane)
            return lane

    def _put_back(self, lane: Lanes) -> None:
        with self._lock:
            self._busy.discard(lane)
            if not self._stopped:
                self._idle.append(lane)
                return
        lane.close()
