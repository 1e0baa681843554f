"""The examination of a flow where it runs: source, destinations and worker, everything that stands in the way at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.core.connectors import find
from penstock.core.finding import Finding
from penstock.core.flow import DestinationUse, Flow
from penstock.core.schema import TableSchema
from penstock.core.secret import mask
from penstock.destinations.base import Destination, DestinationOptions, Place
from penstock.embedded.java import find_java
from penstock.engine.places import journal_directory, ledger_address, staging_directory
from penstock.errors import LedgerUnusable, PenstockError, TableWithoutKey
from penstock.journal.reader import journal_mark
from penstock.ledger.ledger import Ledger
from penstock.sources.base import Source


@dataclass(frozen=True)
class Group:
    """The findings about one part of a flow."""

    title: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way."""
        return all(f.ok for f in self.findings)


def examine(flow: Flow, state: Path) -> Iterator[Group]:
    """Looks at everything the flow needs, part by part, changing nothing; what fails is a finding and never raised."""
    yield Group("worker", tuple(_masked(_worker(state))))
    source_card = find("source", flow.source.type)
    source: list[Source] = []
    tables: list[TableSchema] = []

    def look() -> list[Finding]:
        source.append(source_card.load("source")(flow.name, source_card.options.model_validate(flow.source.options)))
        source[0].recall(_memory(flow, state))
        return source[0].check(_journal_end(flow, state))

    found = _guarded(flow.source.type, look)
    if source:
        # Without a connection there is nothing to list; the check has already said why.
        if any(f.ok for f in found):
            with suppress(PenstockError):
                tables = source[0].discover()
        source[0].close()
    yield Group(f"source {flow.source.type}", tuple(_masked(found)))
    for use in flow.destinations:
        checked = _guarded(use.type, partial(_destination, flow, use, state))
        yield Group(f"destination {use.name} ({use.type})", tuple(_masked([*checked, *_keys(use, tables)])))


def _journal_end(flow: Flow, state: Path) -> int | None:
    """Where the flow's journal ends, or how far its destinations have come; None for a flow that has never run here."""
    end = journal_mark(journal_directory(flow, state))
    path = ledger_address(state)
    if end is not None or not path.exists():
        return end
    ledger = Ledger(path)
    try:
        return max(ledger.checkpoints(flow.name).values(), default=None)
    finally:
        ledger.close()


def _memory(flow: Flow, state: Path) -> dict[str, Any]:
    """What the flow's last run knew of its source."""
    path = ledger_address(state)
    if not path.exists():
        return {}
    ledger = Ledger(path)
    try:
        return ledger.memory(flow.name)
    finally:
        ledger.close()


def _destination(flow: Flow, use: DestinationUse, state: Path) -> list[Finding]:
    card = find("destination", use.type)
    place = Place(flow.name, use.name, staging_directory(flow, state) / use.name)
    destination: Destination = card.load("destination")(place, card.options.model_validate(use.options))
    try:
        return destination.check()
    finally:
        destination.close()


def _keys(use: DestinationUse, tables: Sequence[TableSchema]) -> Iterator[Finding]:
    card = find("destination", use.type)
    options: Any = card.options.model_validate(use.options)
    if not card.capabilities.get("needs_key") or not isinstance(options, DestinationOptions):
        return
    taken = [t for t in tables if options.takes(t.schema, t.name)]
    without = [t for t in taken if not t.key]
    for table in without:
        error = table_without_key(table, use)
        yield Finding(f"table {table.qualified}", False, error.message, error.remedy, error.code)
    if taken and not without:
        yield Finding("keys", True, f"{len(taken)} of {len(taken)} tables have one")


def table_without_key(table: TableSchema, use: DestinationUse) -> TableWithoutKey:
    """The refusal of a table that the destination could not apply changes to."""
    name = ".".join(f'"{part.replace(chr(34), chr(34) * 2)}"' for part in (table.schema, table.name))
    return TableWithoutKey(
        f"The table {table.qualified} has no key, and {use.type} applies changes by key.",
        remedy=f"ALTER TABLE {name} ADD PRIMARY KEY (…); or leave the table out with `exclude` on destination {use.name}.",
        table=table.qualified,
        destination=use.name,
    )


def _worker(state: Path) -> Iterator[Finding]:
    yield from _guarded("java", lambda: [Finding("java", True, str(find_java().path))])
    nearest = state.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        yield Finding("state directory", True, str(state))
    else:
        error = LedgerUnusable(f"{state} cannot be written.", remedy="Mend its rights, or choose another directory with --state.")
        yield Finding("state directory", False, error.message, error.remedy, error.code)
    yield from _guarded("ledger", partial(_ledger, state))


def _ledger(state: Path) -> list[Finding]:
    address = ledger_address(state)
    if not address.is_shared:
        return []
    # It is opened, and so made ready: that it cannot be is what an operator wants to know before a worker is started.
    Ledger(address).close()
    return [Finding("ledger", True, str(address))]


def _guarded(subject: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except PenstockError as error:
        return [Finding(subject, False, error.message, error.remedy, error.code)]


def _masked(findings: Sequence[Finding] | Iterator[Finding]) -> Iterator[Finding]:
    for f in findings:
        yield Finding(f.subject, f.ok, mask(f.detail), mask(f.remedy), f.code)
