"""Newcomers: tables under a flow's patterns that its publication does not send yet, and how they join."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from penstock.core.finding import Finding
from penstock.core.position import format_lsn
from penstock.errors import PenstockError
from penstock.sources.base import Joining
from penstock.sources.postgres import publication
from penstock.sources.postgres.catalog import Table
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.inventory import Inventory
from penstock.sources.postgres.publication import Plan
from penstock.sources.postgres.refusals import identity_missing

_log = structlog.get_logger()

AGAIN = 60.0
"""Seconds after which tables that could not join are tried again."""


class Newcomers:
    """Adds tables to the publication as soon as that breaks nothing; `waiting` says of the others why not."""

    def __init__(self, control: Control, publication_name: str, plan: Callable[[Control], Plan | None], joining: Joining) -> None:
        """`plan` says what the flow may add to its publication, None when it may add nothing; `joining` is told before."""
        self._control, self._publication, self._plan, self._joining = control, publication_name, plan, joining
        self._tried_at = 0.0
        self._strangers: set[tuple[int, str]] = set()
        self.waiting: tuple[Finding, ...] = ()

    def are_due(self) -> bool:
        """Whether tables wait that should be tried again although nothing else has changed."""
        return bool(self.waiting) and time.monotonic() - self._tried_at >= AGAIN

    def join(self, now: Inventory, head: int) -> Joined | None:
        """Lets them join; None when the publication was not changed. `head` is where the log stands, for the record."""
        strangers = {(oid, name) for oid, name in now.existing.items() if oid not in now.sent and oid not in now.partitions}
        # To plan is costly where there are thousands of tables (0.5 ms each); most changes of a catalogue bring no new one.
        if strangers <= self._strangers and not self.waiting:
            return None
        plan = self._plan(self._control)
        self._tried_at, self._strangers, self.waiting = time.monotonic(), strangers, ()
        if plan is None or plan.found is None or not plan.missing:
            return None
        # Published without an identity, the application's own updates would fail.
        silent = [t for t in plan.missing if t.silent and plan.found.sends_updates]
        self.waiting = tuple(_waits(t, identity_missing(t, plan)) for t in silent)
        joining = [t for t in plan.missing if t not in silent]
        if not joining:
            return None
        try:
            loaded = add(self._control, self._publication, joining, lambda names: self._joining(names, head))
        except PenstockError as error:
            self.waiting += tuple(_waits(t, error) for t in joining)
            return None
        say_joined(joining, self._publication, loaded=loaded, position=format_lsn(head))
        return Joined(joining, loaded)


@dataclass(frozen=True)
class Joined:
    """Tables that have joined, and whether their rows are loaded."""

    tables: Sequence[Table]
    loaded: bool


def add(control: Control, name: str, tables: Sequence[Table], joining: Callable[[Sequence[tuple[str, str]]], bool]) -> bool:
    """Adds tables to the publication; `joining` is told before anybody sees them in it, and its answer returned."""
    answers: list[bool] = []
    told = [(table.schema, table.name) for table in tables]
    control.execute(publication.addition(name, tables), before_commit=lambda: answers.append(joining(told)))
    return answers[0]


def say_joined(tables: Sequence[Table], name: str, *, loaded: bool, **facts: str) -> None:
    """A line of the log for each table that has joined."""
    rows = "those that are there are loaded first" if loaded else "those written before are not delivered"
    for table in tables:
        _log.info("table joined the flow's publication", table=table.qualified, publication=name, rows=rows, **facts)


def _waits(table: Table, error: PenstockError) -> Finding:
    return Finding(f"new table {table.qualified}", False, f"It does not join the flow: {error.message}", error.remedy, error.code)
