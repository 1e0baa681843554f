"""A capture process under its real supervisor, without Spark: it reconnects by itself, and everything journalled is confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.engine.supervisor import CaptureSupervisor
from penstock.journal.reader import JournalTail
from penstock.sources.postgres.decoder import PostgresDecoder
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.processes import wait_until
from tests.sources.postgres.captured import Captured


class Supervised(Captured):
    """A flow `flow` whose journal is the only destination; what is remembered of the source outlives a `running` block."""

    def __init__(
        self,
        dsn: str,
        directory: Path,
        *,
        fresh: Callable[[], PostgresOptions] | None = None,
        confirms: bool = True,
        **options: Any,
    ) -> None:
        self.options = PostgresOptions(dsn=dsn, **options)
        self.directory = directory
        self.memory: dict[str, Any] = {}
        self._fresh, self._confirms = fresh, confirms
        self._decoder = PostgresDecoder()
        self.supervisor: CaptureSupervisor | None = None

    @contextmanager
    def running(self) -> Iterator[Supervised]:
        """Capture runs during the block; an error that ends it for good stays in `supervisor.error`."""
        self.source = PostgresSource("flow", self.options)
        self.source.recall(self.memory)
        supervisor = CaptureSupervisor(self.source, "postgres", self.directory, self._appended, self._fresh)
        self.supervisor = supervisor
        try:
            prepared, _, mark = supervisor.prepare()
            supervisor.journal_mark = mark
            self.memory = self.source.remember()
            supervisor.begin(prepared)
            yield self
            self.memory = self.source.remember()
        finally:
            supervisor.stop()
            self.source.close()

    def _appended(self) -> None:
        if self.supervisor is not None and self._confirms:
            self.supervisor.confirm(self.supervisor.journal_mark)

    def drain(self, seconds: float = 60) -> None:
        """Waits until the journal has everything that the server has now."""
        assert self.supervisor is not None
        self._reach(self.source.head(), seconds)

    def _reach(self, head: int, seconds: float) -> None:
        assert self.supervisor is not None
        tail = JournalTail(self.directory, None)
        deadline = time.monotonic() + seconds
        while tail.mark < head:
            while tail.read():
                pass
            assert self.supervisor.error is None, self.supervisor.error
            assert time.monotonic() < deadline, "the journal did not reach the server's end"
            self.supervisor.probe()
            time.sleep(0.05)
        tail.close()

    def ended(self, seconds: float = 60) -> BaseException:
        """Waits for the error that has ended capture for good."""
        supervisor = self.supervisor
        assert supervisor is not None
        wait_until(lambda: supervisor.error is not None, seconds)
        assert supervisor.error is not None
        return supervisor.error

    def ids(self, table: str = "t") -> list[int]:
        """The ids of all rows that were inserted, in order."""
        return [e["row"]["id"] for e in self.events(table) if e["op"] == "insert"]
