"""The end of a run that was asked to end by itself: nothing is left of the source, or of the loads."""

from __future__ import annotations

import structlog

from penstock.engine.drain import Drain
from penstock.engine.loading import Loading
from penstock.engine.loops import Loops
from penstock.engine.resolving import Resolving

_log = structlog.get_logger()

DRAINED = "drained"
"""Why a run has ended that found nothing left; any other end, a signal's too, is one that came before."""
LOADED = "loaded"
"""Why a run has ended whose flow is to load its tables and no more: whoever starts it again finds nothing to do."""


class Ending:
    """Used by the worker's watch, in its rhythm; never waits."""

    def __init__(
        self,
        loops: Loops,
        loading: Loading,
        resolving: Resolving,
        drain: Drain,
        *,
        max_empty_reads: int | None,
        loads_only: bool,
        only_loads: bool,
        resolves: bool,
    ) -> None:
        """`loads_only` ends this run with the loads, `max_empty_reads` after so many looks that found nothing left; `only_loads`
        says that the flow is defined so. `resolves` has staging tables merged once no load is open, before either."""
        self._loops, self._loading, self._resolving, self._drain = loops, loading, resolving, drain
        self._most, self._loads_only, self._only_loads, self._resolves = max_empty_reads, loads_only, only_loads, resolves

    def look(self) -> str | None:
        """Why the run is over; None while it is not."""
        loaded = self._loading.has_looked and not self._loading.open
        if self._resolves and loaded:
            self._resolves = False
            self._resolving.begin(self._loops, {})
        done = not self._resolves and not self._resolving.is_busy
        if self._most is not None and self._drain.look() >= self._most and done:
            return DRAINED
        if (self._loads_only or self._only_loads) and loaded and done:
            _log.info("the flow's tables are loaded, and nothing else was asked for: it ends here", flow=self._loops.flow.name)
            return LOADED if self._only_loads else DRAINED
        return None
