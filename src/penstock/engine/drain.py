"""The drain: tells when a worker that is to end has nothing left to do."""

from __future__ import annotations

from penstock.engine.loading import Loading
from penstock.engine.loops import Loops
from penstock.engine.supervisor import CaptureSupervisor
from penstock.errors import SourceError
from penstock.sources.base import Source


class Drain:
    """Counts looks, one after the other, that found nothing left; used by one thread."""

    def __init__(self, source: Source, loops: Loops, supervisor: CaptureSupervisor, loading: Loading) -> None:
        self._source, self._loops, self._supervisor, self._loading = source, loops, supervisor, loading
        self._empty, self._delivered = 0, -1

    def look(self) -> int:
        """How many looks in a row, this one included, have found nothing new and nothing left."""
        count = sum(loop.status.epochs for loop in self._loops)
        self._empty = self._empty + 1 if count == self._delivered else 0
        self._delivered = count
        if not self._is_drained():
            self._empty = 0
        return self._empty

    def _is_drained(self) -> bool:
        """Whether everything that the source has now has reached every destination that works; asks for a fresh mark if not."""
        try:
            head = self._source.head()
        except SourceError:
            # Whether it will answer again is for capture's supervisor to say.
            return False
        if self._loading.open or not self._loading.has_looked:
            return False
        working = [loop for loop in self._loops if loop.error is None]
        if all(loop.status.position >= head and loop.is_idle() and not loop.owes() for loop in working):
            return True
        if all(loop.is_idle() for loop in working):
            self._supervisor.probe()
        return False
