"""A capture that runs in a thread against a real database, and what its journal decodes to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.core.batch import Batch, Op
from penstock.journal.reader import JournalTail, SliceReader
from penstock.journal.record import Slice
from penstock.journal.writer import JournalWriter
from penstock.sources.base import Link
from penstock.sources.postgres.capture import PostgresCapture
from penstock.sources.postgres.decoder import PostgresDecoder
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database


class PlainLink(Link):
    """A worker that only says what it is told to."""

    def __init__(self) -> None:
        self.position = 0
        self.ended = False
        self.asked = 0
        self.holding = False
        self.heard: list[int] = []
        self._call: Callable[[], None] = lambda: None

    @property
    def confirmed(self) -> int:
        return self.position

    @property
    def stopping(self) -> bool:
        return self.ended

    @property
    def probes(self) -> int:
        return self.asked

    @property
    def held(self) -> bool:
        return self.holding

    def on_confirmed(self, call: Callable[[], None]) -> None:
        self._call = call

    def confirm(self, position: int) -> None:
        self.position = position
        self._call()

    def appended(self, mark: int) -> None:
        return

    def told(self, position: int) -> None:
        self.heard.append(position)


class Captured:
    """One flow's capture over a database; `drain` returns when the journal has everything up to now."""

    def __init__(self, database: Database, directory: Path, export: bool = False, **options: Any) -> None:
        self.directory = directory
        self.source = PostgresSource("flow", PostgresOptions(**{"dsn": database.dsn, **options}))
        self.prepared = self.source.prepare(None, export)
        self.link = PlainLink()
        self.error: BaseException | None = None
        self._decoder = PostgresDecoder()
        self._decoder.recipe = self.source.decoding()

    @contextmanager
    def running(self) -> Iterator[Captured]:
        """Capture runs during the block; it can be entered again."""
        writer = JournalWriter(self.directory)
        if writer.is_new:
            writer.begin(self.prepared.start)
        self.link = PlainLink()
        capture = PostgresCapture(self.source.recipe())

        def run() -> None:
            try:
                capture.run(writer, self.link)
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield self
        finally:
            self.link.ended = True
            thread.join(20)
            writer.close()
            self.source.close()
            if self.error is not None:
                raise self.error

    def drain(self, seconds: float = 60) -> None:
        """Waits until the journal is complete up to the server's present end."""
        head = self.source.head()
        deadline = time.monotonic() + seconds
        tail = JournalTail(self.directory, None)
        while tail.mark < head:
            while tail.read():
                pass
            assert self.error is None, self.error
            assert time.monotonic() < deadline, "the journal did not reach the server's end"
            self.link.asked += 1
            time.sleep(0.02)
        tail.close()

    @property
    def mark(self) -> int:
        """The position up to which the journal is complete."""
        tail = JournalTail(self.directory, None)
        while tail.read():
            pass
        tail.close()
        return tail.mark

    def slices(self, after: int | None = None) -> list[Slice]:
        tail = JournalTail(self.directory, after)
        found: list[Slice] = []
        while part := tail.read():
            found += part
        tail.close()
        return found

    def batches(self, bucket: int = 0, buckets: int = 1) -> list[Batch]:
        reader = SliceReader(self.directory)
        slices = self.slices()
        found = list(self._decoder.decode(reader, slices, bucket, buckets, lambda table: True)) if slices else []
        reader.close()
        return found

    def events(self, table: str, bucket: int = 0, buckets: int = 1) -> list[dict[str, Any]]:
        """The changes of one table as dictionaries, in order: op, identity, row, unchanged names, before."""
        found = []
        for batch in self.batches(bucket, buckets):
            if batch.table.name == table:
                found += events_of(batch)
        return found


def events_of(batch: Batch) -> list[dict[str, Any]]:
    rows = batch.rows.to_pylist()
    before = batch.before.to_pylist() if batch.before is not None else [None] * len(batch)
    names = [c.name for c in batch.table.columns]
    masks = [m.to_pylist() if m is not None else None for m in batch.unchanged]
    images = batch.image.to_pylist()
    return [
        {
            "op": Op(op).name.lower(),
            "id": (position, ordinal),
            "row": rows[i],
            "unchanged": [n for n, m in zip(names, masks, strict=True) if m is not None and m[i]],
            "before": before[i] if images[i] and op in (Op.UPDATE, Op.ENTER) else None,
            "version": batch.table.version,
        }
        for i, (op, position, ordinal) in enumerate(
            zip(batch.op.to_pylist(), batch.position.to_pylist(), batch.ordinal.to_pylist(), strict=True)
        )
    ]
