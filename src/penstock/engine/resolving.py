"""Resolving staging tables while a worker runs: asked for in the ledger, done by the loops, answered in the ledger."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from penstock.core.options import matches
from penstock.destinations.base import Resolution
from penstock.errors import LedgerError, PenstockError
from penstock.ledger.ledger import Ledger

if TYPE_CHECKING:
    from penstock.engine.loops import Loops

_log = structlog.get_logger()

ASKED, DONE, REFUSED = "resolve staging asked for", "staging resolved", "resolve staging refused"
"""Events in a flow's life: the question, whose reason is JSON, and the two answers."""
LOOK = 1.0

_Asked = dict[str, Future[list[Resolution]]]


def taking(patterns: Sequence[str]) -> Callable[[str, str], bool]:
    """Whether a table is meant; no pattern means every table."""
    return lambda schema, table: not patterns or matches(tuple(patterns), schema, table)


def described(destination: str, found: Sequence[Resolution]) -> list[dict[str, Any]]:
    """What became of a destination's staging tables, as plain data."""
    return [{"destination": destination, **asdict(one)} for one in found]


class Recording(Protocol):
    """Keeps an event of the flow's life."""

    def __call__(self, event: str, why: str | None, state: str | None = None, answers: int | None = None) -> None:
        """Keeps it, with the number of the question that it answers."""


class Resolving:
    """Used by the worker's watch, in its rhythm; never waits."""

    def __init__(self, ledger: Ledger, flow: str, record: Recording, since: int) -> None:
        """`record` keeps an event, while the ledger cannot be reached until it can; what was asked after `since` is done."""
        self._ledger, self._flow, self._record = ledger, flow, record
        self._seen = since
        self._looked_at = 0.0
        self._running: list[tuple[int | None, _Asked]] = []

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
                    self.begin(loops, json.loads(event.why or "{}"), event.id)
        alive = {loop.status.name for loop in loops if loop.is_alive()}
        for one in [r for r in self._running if all(f.done() or name not in alive for name, f in r[1].items())]:
            self._running.remove(one)
            self._answer(*one)

    @property
    def is_busy(self) -> bool:
        """Whether something that was begun is not answered."""
        return bool(self._running)

    def begin(self, loops: Loops, what: dict[str, Any], question: int | None = None) -> None:
        """Has the loops do it between two epochs; `what` may name a destination and tables."""
        takes, destinations = taking(what.get("tables") or ()), loops.destinations
        chosen = [loop for loop in loops if what.get("destination") in (None, loop.status.name)]
        asked = {}
        for loop in chosen:
            destination = destinations[loop.status.name]
            asked[loop.status.name] = loop.errands.ask(lambda d=destination: d.resolve_staging(takes))  # type: ignore[misc]
        self._running.append((question, asked))

    def _answer(self, question: int | None, asked: _Asked) -> None:
        found: list[dict[str, Any]] = []
        for name, future in asked.items():
            error = future.exception() if future.done() else None
            if error is not None or not future.done():
                told = error if isinstance(error, PenstockError) else None
                why = {"code": told.code, "message": told.message, "remedy": told.remedy} if told else {"message": str(error)}
                _log.warning("staging tables were not resolved", destination=name, **why)
                self._record(REFUSED, json.dumps({"destination": name, **why}), answers=question)
                return
            found += described(name, future.result())
        self._record(DONE, json.dumps(found), answers=question)
