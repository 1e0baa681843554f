"""Resolving staging tables while a worker runs: asked for in the ledger, done by the loops, answered in the ledger."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import structlog

from penstock.core.options import matches
from penstock.destinations.base import Resolution
from penstock.errors import LedgerError, PenstockError
from penstock.ledger.leases import Holder
from penstock.ledger.ledger import Ledger

if TYPE_CHECKING:
    from penstock.engine.loops import Loops

_log = structlog.get_logger()

ASKED, DONE, REFUSED = "resolve staging asked for", "staging resolved", "resolve staging refused"
"""Events in a flow's life: the question, whose reason is JSON, and the two answers."""
LOOK = 1.0


def taking(patterns: Sequence[str]) -> Callable[[str, str], bool]:
    """Whether a table is meant; no pattern means every table."""
    return lambda schema, table: not patterns or matches(tuple(patterns), schema, table)


def described(destination: str, found: Sequence[Resolution]) -> list[dict[str, Any]]:
    """What became of a destination's staging tables, as plain data."""
    return [{"destination": destination, **asdict(one)} for one in found]


class Resolving:
    """Used by the worker's watch, in its rhythm; never waits."""

    def __init__(self, ledger: Ledger, flow: str, generation: int) -> None:
        self._ledger, self._flow, self._generation = ledger, flow, generation
        self._seen = max((event.id for event in ledger.lifecycle.events(flow, 1)), default=0)
        self._looked_at = 0.0
        self._running: list[dict[str, Future[list[Resolution]]]] = []

    def look(self, loops: Loops) -> None:
        """Hands on what is asked for, and answers what is done."""
        if time.monotonic() - self._looked_at >= LOOK:
            self._looked_at = time.monotonic()
            try:
                events = self._ledger.lifecycle.events(self._flow, 50, self._seen)
            except LedgerError:
                return
            for event in events:
                self._seen = event.id
                if event.event == ASKED:
                    self.begin(loops, json.loads(event.why or "{}"))
        alive = {loop.status.name for loop in loops if loop.is_alive()}
        for asked in [a for a in self._running if all(f.done() or name not in alive for name, f in a.items())]:
            self._running.remove(asked)
            self._answer(asked)

    @property
    def is_busy(self) -> bool:
        """Whether something that was begun is not answered."""
        return bool(self._running)

    def begin(self, loops: Loops, what: dict[str, Any]) -> None:
        """Has the loops do it between two epochs; `what` may name a destination and tables."""
        takes, destinations = taking(what.get("tables") or ()), loops.destinations
        chosen = [loop for loop in loops if what.get("destination") in (None, loop.status.name)]
        asked = {}
        for loop in chosen:
            destination = destinations[loop.status.name]
            asked[loop.status.name] = loop.errands.ask(lambda d=destination: d.resolve_staging(takes))  # type: ignore[misc]
        self._running.append(asked)

    def _answer(self, asked: dict[str, Future[list[Resolution]]]) -> None:
        found: list[dict[str, Any]] = []
        for name, future in asked.items():
            error = future.exception() if future.done() else None
            if error is not None or not future.done():
                told = error if isinstance(error, PenstockError) else None
                why = {"code": told.code, "message": told.message, "remedy": told.remedy} if told else {"message": str(error)}
                _log.warning("staging tables were not resolved", destination=name, **why)
                self._record(REFUSED, {"destination": name, **why})
                return
            found += described(name, future.result())
        self._record(DONE, found)

    def _record(self, event: str, what: Any) -> None:
        self._ledger.lifecycle.record(self._flow, self._generation, event, json.dumps(what), str(Holder.here()))
