"""The picture of a running worker, in a file that anybody may read: `run/<flow>/status.json`.

It is for people and pages; what must survive is in the ledger. A picture counts only while its worker holds the lease.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from penstock.engine.status import DestinationStatus, WorkerStatus
from penstock.sources.base import SourceHealth

_log = structlog.get_logger()

NAME = "status.json"
INTERVAL = 0.5
WINDOW = 5.0
"""Seconds over which rates are taken."""


class Picture:
    """Written when something has changed, twice a second at most, whole or not at all; used by one thread."""

    def __init__(self, directory: Path, generation: int, status: Callable[[], WorkerStatus]) -> None:
        self._path, self._generation, self._status = directory / NAME, generation, status
        self._looked_at = 0.0
        self._last: dict[str, Any] = {}
        self._rows: dict[str, deque[tuple[float, int]]] = {}

    def look(self, *, at_once: bool = False) -> None:
        """Writes the present moment, if it is time and differs from the last."""
        now = time.monotonic()
        if now - self._looked_at < INTERVAL and not at_once:
            return
        self._looked_at = now
        data = self._data(self._status(), now)
        if data == self._last:
            return
        self._last = data
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_suffix(f".{self._generation}.new")
            fresh.write_text(json.dumps({**data, "at": time.time()}))
            fresh.replace(self._path)
        except OSError as error:
            _log.debug("the picture could not be written", reason=error.strerror)

    def _data(self, status: WorkerStatus, now: float) -> dict[str, Any]:
        return {
            "flow": status.flow,
            "generation": self._generation,
            "journal_bytes": status.journal_bytes,
            "journal_mark": status.journal_mark,
            "told": status.confirmed,
            "destinations": [self._destination(d, now) for d in status.destinations],
            "source": _health(status.source) if status.source is not None else None,
            "source_trouble": status.source_trouble,
        }

    def _destination(self, status: DestinationStatus, now: float) -> dict[str, Any]:
        total = sum(status.rows.values())
        return {
            "name": status.name,
            "type": status.type,
            "state": status.state,
            "since": status.since,
            "next_try": status.next_try,
            "attempts": status.attempts,
            "error": status.error,
            "position": status.position,
            "lag_seconds": round(status.lag_seconds, 3),
            "rows": total,
            "rows_per_second": self._rate(status.name, total, now),
            "epochs": status.epochs,
            "counts": status.counts,
        }

    def _rate(self, name: str, total: int, now: float) -> float:
        seen = self._rows.setdefault(name, deque())
        seen.append((now, total))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW:
            seen.popleft()
        began, first = seen[0]
        return round(max(0, total - first) / (now - began), 1) if now > began else 0.0


def read(directory: Path) -> dict[str, Any] | None:
    """The last picture in the flow's run directory; None when there is none."""
    try:
        found: dict[str, Any] = json.loads((directory / NAME).read_text())
    except (OSError, ValueError):
        return None
    return found


def _health(health: SourceHealth) -> dict[str, Any]:
    plain = ("head", "confirmed", "lag_bytes", "retained_bytes", "state", "safe_bytes")
    seconds = {"lag_seconds": round(health.lag_seconds), "seconds_left": health.seconds_left}
    findings = [{"subject": f.subject, "detail": f.detail, "code": f.code, "remedy": f.remedy} for f in health.findings]
    return {**{name: getattr(health, name) for name in plain}, **seconds, "findings": findings}
