"""Steering: the worker's half of pause, resume and stop. It follows the operators' wish and records what became of it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from penstock.engine.loops import Loops
from penstock.errors import (
    ConnectorError,
    DestinationError,
    FlowError,
    FlowInvalid,
    FlowStopped,
    JournalError,
    LedgerError,
    LedgerUnreachable,
    PenstockError,
    SourceError,
)
from penstock.ledger.leases import Holder
from penstock.ledger.ledger import Ledger
from penstock.ledger.lifecycle import Wish

_log = structlog.get_logger()

LOOK = 0.4
"""Seconds between looks at the wish."""
REMINDER = 60.0
"""Seconds between two lines in the log about a ledger that does not answer."""


def refuse_stopped(flow: str, wish: Wish) -> None:
    """FlowStopped when the flow is not to run."""
    if wish.state == "stopped":
        raise FlowStopped(f"flow {flow} was stopped {said(wish)}", flow=flow)


def said(wish: Wish) -> str:
    """Who wished it, when and why, for a sentence."""
    when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(wish.at / 1e6))
    return f"by {wish.who} at {when}" + (f": {wish.why}" if wish.why else "")


@dataclass(frozen=True)
class Asked:
    """What was asked of a flow before its worker had it: whatever is newer is that worker's to answer, also from its start."""

    reloads: int
    event: int
    """The newest event's number; 0 when there is none."""


def asked(ledger: Ledger, flow: str) -> tuple[Wish, Asked]:
    """What is wanted of the flow, and up to where others were asked."""
    newest = max((event.id for event in ledger.lifecycle.events(flow, 1)), default=0)
    wish = ledger.lifecycle.wish(flow)
    return wish, Asked(wish.reloads, newest)


class Steering:
    """Used by one thread, in the same rhythm as the worker's own watch."""

    def __init__(self, ledger: Ledger, flow: str, generation: int, reload: Callable[[], str], reloads: int) -> None:
        """`reload` reads the definition again and says in words what has changed; its error is recorded as a refusal.

        `reloads` is how often that had been asked for before the worker read the definition that it runs.
        """
        self._ledger, self._flow, self._generation, self._reload = ledger, flow, generation, reload
        self._looked_at = 0.0
        self._who = str(Holder.here())
        self._wish = ledger.lifecycle.wish(flow)
        self._reloads = reloads
        self._state = "running"
        self._late: list[tuple[str, str | None, str | None, int | None]] = []
        self._complained_at = -math.inf
        self._pausing = self._wish.state == "paused"
        if self._pausing:
            _log.info("the flow is paused: it is captured and not delivered", flow=flow, paused=said(self._wish))

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be delivered now."""
        return self._pausing or self._state == "paused"

    def look(self, loops: Loops) -> Wish | None:
        """Follows the wish; returns it when it is that the worker ends."""
        if time.monotonic() - self._looked_at >= LOOK:
            self._looked_at = time.monotonic()
            try:
                self._wish = self._ledger.lifecycle.wish(self._flow)
                self._record_late()
            except LedgerError as error:
                self._complain(error)
                return None
            self._complained_at = -math.inf
            self._follow(loops)
        if self._pausing and loops.are_quiet():
            self._pausing, self._state = False, "paused"
            _log.info("paused", flow=self._flow)
            self.record("paused", None, "paused")
        return self._wish if self._wish.state == "stopped" else None

    def record(self, event: str, why: str | None, state: str | None = None, answers: int | None = None) -> None:
        """Keeps what happened, in the ledger; while that cannot be reached, until it can."""
        self._late.append((event, why, state, answers))
        with contextlib.suppress(LedgerUnreachable):
            self._record_late()

    def _record_late(self) -> None:
        while self._late:
            event, why, state, answers = self._late[0]
            self._ledger.lifecycle.record(self._flow, self._generation, event, why, self._who, state, answers)
            self._late.pop(0)

    def _complain(self, error: LedgerError) -> None:
        if time.monotonic() - self._complained_at >= REMINDER:
            self._complained_at = time.monotonic()
            _log.warning("the ledger could not be asked what is wanted of the flow", reason=error.message, remedy=error.remedy)

    def reload(self, question: int | None = None) -> None:
        """Has the definition read again, and records what came of it as the answer; a refusal changes nothing."""
        try:
            changes = self._reload()
        except FlowInvalid as error:
            why = "; ".join(f"{p.path}: {p.message}" for p in error.problems)
            for problem in error.problems:
                _log.warning("the flow file has a problem", path=problem.path, problem=problem.message, remedy=problem.remedy)
            self._refused(error, f"{error.message}: {why}", question)
        except (FlowError, ConnectorError, DestinationError, JournalError, LedgerUnreachable, SourceError) as error:
            self._refused(error, error.message, question)
        else:
            _log.info("reloaded", flow=self._flow, changes=changes)
            self.record("reloaded", changes, answers=question)

    def _refused(self, error: PenstockError, why: str, question: int | None) -> None:
        _log.warning("reload refused; the flow goes on as before", code=error.code, reason=why, remedy=error.remedy)
        self.record("reload refused", f"{error.code}: {why}", answers=question)

    def _follow(self, loops: Loops) -> None:
        wish = self._wish
        if wish.state == "paused" and not self.is_paused:
            _log.info("pausing", flow=self._flow, by=wish.who, why=wish.why or "")
            self._pausing = True
            loops.pause()
        elif wish.state == "running" and self.is_paused:
            _log.info("resumed", flow=self._flow, by=wish.who)
            self._pausing, self._state = False, "running"
            loops.resume()
            self.record("resumed", None, "running")
        if wish.reloads != self._reloads:
            self._reloads = wish.reloads
            self.reload(wish.reloads)
