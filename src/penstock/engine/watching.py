"""The watch over the source: a thread that looks at it every few seconds, whatever else the worker does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from penstock.core.finding import Finding
from penstock.core.options import format_size
from penstock.core.position import format_lsn
from penstock.errors import PenstockError, SourceStopping
from penstock.sources.base import Source, SourceHealth

_log = structlog.get_logger()

INTERVAL = 5.0
REPORT_INTERVAL = 60.0
"""Seconds between two lines in the log about a source that is well, and between two of the same warning."""


class SourceWatch(threading.Thread):
    """Keeps `health` fresh; `error` is set when a look has shown that the flow must not go on."""

    def __init__(
        self,
        source: Source,
        remember: Callable[[dict[str, Any]], None],
        ended: Callable[[], None],
        interval: float = INTERVAL,
        let_go: Callable[[PenstockError], None] = lambda _: None,
    ) -> None:
        super().__init__(name="source watch", daemon=True)
        self._source, self._remember, self._ended, self._interval = source, remember, ended, interval
        self._let_go = let_go
        self._stopping = threading.Event()
        self._reported_at = 0.0
        self._warned: dict[str, tuple[str, float]] = {}
        self.health: SourceHealth | None = None
        """What the last look that succeeded has seen."""
        self.trouble: str | None = None
        """What keeps the watch from looking now."""
        self.error: PenstockError | None = None
        """Why the flow must end."""

    def stop(self) -> None:
        """Ends the thread after the look it is at."""
        self._stopping.set()

    def run(self) -> None:
        """The thread's loop."""
        structlog.contextvars.bind_contextvars(flow=self._source.flow)
        while not self._stopping.wait(self._interval):
            health = self._look()
            if health is None:
                continue
            self.health = health
            self._report(health)
            if health.error is not None:
                self.error = health.error
                _log.error("the flow must not go on", code=self.error.code, reason=self.error.message, remedy=self.error.remedy)
                self._ended()
                return

    def _look(self) -> SourceHealth | None:
        try:
            health = self._source.look()
        except PenstockError as error:
            self._note_trouble(f"{error.code}: {error.message}")
            if isinstance(error, SourceStopping):
                # It waits until its readers confirm everything or go, and we confirm only what destinations have.
                self._let_go(error)
            return None
        except Exception as error:
            # The flow does not depend on being looked at.
            self._note_trouble(f"{type(error).__name__}: {error}")
            return None
        if self.trouble is not None and not self._stopping.is_set():
            _log.info("the source can be looked at again")
            self.trouble = None
        return health

    def _note_trouble(self, reason: str) -> None:
        if self.trouble is None and not self._stopping.is_set():
            _log.warning("the source cannot be looked at; the flow goes on", reason=reason)
        self.trouble = reason

    def _report(self, health: SourceHealth) -> None:
        now = time.monotonic()
        known = {f.subject for f in health.findings}
        self._warned = {subject: told for subject, told in self._warned.items() if subject in known}
        for finding in health.findings:
            self._warn(finding, now)
        if now - self._reported_at < REPORT_INTERVAL:
            return
        self._reported_at = now
        _log.info("source", **facts(health))
        self._remember(self._source.remember())

    def _warn(self, finding: Finding, now: float) -> None:
        told, told_at = self._warned.get(finding.subject, ("", 0.0))
        lasts = finding.code == "slot_endangered"
        # Something that is over is said once each time it happens; a danger is said as long as it lasts.
        what = finding.code if lasts else f"{finding.code}: {finding.detail}"
        if told == what and not (lasts and now - told_at >= REPORT_INTERVAL):
            return
        self._warned[finding.subject] = (what, now)
        _log.warning(finding.detail, subject=finding.subject, code=finding.code, remedy=finding.remedy)


def facts(health: SourceHealth) -> dict[str, str]:
    """The health in words, for a line of the log."""
    found = {
        "lag": f"{format_size(health.lag_bytes)}, {health.lag_seconds:.0f} s",
        "confirmed": format_lsn(health.confirmed),
        "head": format_lsn(health.head),
        "retained": f"{format_size(health.retained_bytes)}, {health.state}",
    }
    if health.safe_bytes is not None:
        found["safe"] = format_size(health.safe_bytes)
    if health.seconds_left is not None:
        found["time_left"] = f"{health.seconds_left:.0f} s"
    return found
