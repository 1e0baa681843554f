"""Loads over a captured journal, without Spark: a destination's loop, the loading thread, and readers in threads of the test."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.core import connectors
from penstock.core.flow import Flow
from penstock.engine.chunk_task import Reading
from penstock.engine.joining import Joining
from penstock.engine.loading import Loading
from penstock.engine.loop import DestinationLoop
from penstock.engine.moments import Moment, Moments
from penstock.engine.reading import Readers, Receipts, items_of
from penstock.errors import PenstockError, from_data
from penstock.journal.chunks import chunk_path
from penstock.ledger.loads import Load, LoadChunk
from penstock.sources.base import Source
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.engine.delivery import Delivery
from tests.flows import wait_until


class ReadersHere(Readers):
    """Readers that work in the thread that asks them; `most` is how many chunks they read before they pretend to be dead."""

    def __init__(self, source: Source, journal: Path, most: int | None = None) -> None:
        self._source, self._journal, self._left = source, journal, most
        self._stopped = False
        self.read_chunks: list[tuple[str, str, str]] = []

    def read(
        self, load: Load, chunks: Sequence[LoadChunk], snapshot: str | None, side_by_side: int, spares: Sequence[str] = ()
    ) -> tuple[Receipts, PenstockError | None]:
        home = str(chunk_path(self._journal, load.id, "x").parent)
        order = {
            "recipe": self._source.reading(None),
            "snapshot": snapshot,
            "after": load.low,
            "home": home,
        }
        items = items_of(chunks, spares)
        if self._left is not None:
            items = items[: self._left]
            self._left -= len(items)
        reading = Reading("postgres")
        found = list(reading.read(order, items))
        reading.close()
        for chunk in chunks[: len(items)]:
            self.read_chunks.append((chunk.table, str(chunk.content["chunk"]["kind"]), str(chunk.id)))
        errors = [from_data(r["error"]) for r in found if "error" in r]
        return [r for r in found if "error" not in r], errors[0] if errors else None

    def stop(self) -> None:
        self._stopped = True

    def rest(self) -> None:
        pass


class LoadedDelivery(Delivery):
    """A destination with what loads its tables; each `start` is another worker's."""

    def __init__(self, database: Database, directory: Path, kind: str, lanes: int = 1, **options: Any) -> None:
        super().__init__(database, directory, kind, lanes, **options)
        self.source_options: dict[str, Any] = {"dsn": database.dsn, "snapshot_chunk": "1MiB", "snapshot_workers": 2}
        self.first: Moment | None = None
        self.most: int | None = None
        self.others: tuple[str, ...] = ()
        """Destinations that take part in loads, and of which nothing is seen here."""

        self.config: dict[str, Any] = {}

    def begin_first(self) -> None:
        """Records the flow's first load, as a worker does at its first start; before `start`."""
        self._first = True

    _first = False

    def before_start(self) -> None:
        if self._first:
            self._first = False
            takes = self.destination.options.takes
            tables = [(t.schema, t.name) for t in self.captured.source.discover() if t.identity and takes(t.schema, t.name)]
            self.ledger.loads.begin("flow", self.lease.generation, "first", {}, "test", {"target": tables})

    def start(self) -> DestinationLoop:
        loop = super().start()
        takes = self.destination.options.takes
        source = PostgresSource("flow", PostgresOptions(**self.source_options))
        self.readers = ReadersHere(source, self.captured.directory, self.most)
        reader = connectors.find("source", "postgres").load("chunks")
        start = self.captured.prepared.start
        moments = Moments(
            self.captured.directory, lambda: reader({}), lambda: max(start, self.captured.mark), self._probe, self.first
        )
        self.first = None
        self.loading = Loading(
            Flow.model_validate({**_definition(self.kind), "config": self.config}),
            source,
            self.readers,
            moments,
            self.ledger,
            self.lease,
            self.captured.directory,
            notice=loop.notice_loads,
            takes=lambda: dict.fromkeys(("target", *self.others), takes),
            begun=lambda _, load: loop.has_begun(load),
            ended=lambda _, load: loop.has_ended(load),
        )
        self.loading.start()
        return loop

    def _probe(self) -> None:
        self.captured.link.asked += 1

    def stop(self) -> None:
        if self.loop is not None:
            self.loading.stop()
            self.loading.close()
        super().stop()

    def watch_joining(self) -> None:
        """From now on the source tells of tables that join, as a worker has it, and has looked once."""
        loop, takes = self.loop, self.destination.options.takes
        assert loop is not None

        def notice() -> None:
            loop.notice_loads()
            self.loading.look_soon()

        flow = Flow.model_validate(_definition(self.kind))
        about: dict[str, Any] = {"mode": "initial", "takes": lambda: {"target": takes}, "notice": notice}
        joining = Joining(flow, self.ledger, self.lease.generation, **about)
        joining.delivers = True
        self.captured.source.joining = joining

    def backfill(self, *tables: str, **spec: Any) -> int:
        """Asks for a backfill, as the command does."""
        number = self.ledger.loads.request("flow", "backfill", {"tables": list(tables), **spec}, "test")
        self.loading.look_soon()
        return number

    def finish(self, seconds: float = 120) -> None:
        """Waits until no load is open, and everything of the source is delivered."""
        assert self.loop is not None
        loop, turns = self.loop, itertools.count()

        def over() -> bool:
            self._probe()
            loop.notice()
            assert loop.error is None or self.was_killed, loop.error
            assert self.loading.error is None, self.loading.error
            return self.was_killed or (next(turns) > 0 and not self.ledger.loads.open("flow"))

        wait_until(over, seconds, f"loads are not over: {self.ledger.loads.open('flow')}")
        if not self.was_killed:
            self.settle()


def _definition(kind: str) -> dict[str, Any]:
    return {"name": "flow", "source": {"type": "postgres"}, "destinations": [{"name": "target", "type": kind}]}
