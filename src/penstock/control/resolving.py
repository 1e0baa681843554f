"""Staging tables resolved by command: by the worker if one runs, else here under the flow's lease."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.control.lifecycle import existing_ledger, operator, worker_of
from penstock.core.connectors import find
from penstock.core.flow import DestinationUse, Flow
from penstock.destinations.base import Destination, Place
from penstock.engine.lease import holding
from penstock.engine.places import staging_directory
from penstock.engine.resolving import ASKED, DONE, REFUSED, described, taking
from penstock.errors import FlowUnknown, TransitionRefused, from_data
from penstock.ledger.address import LedgerAddress
from penstock.ledger.leases import Leases
from penstock.ledger.ledger import Ledger


def resolve(
    name: str,
    flow: Flow | None,
    state: Path,
    destination: str | None,
    tables: Sequence[str],
    patience: float = 3600.0,
    who: str | None = None,
) -> list[dict[str, Any]] | None:
    """What became of each staging table; None when the worker has not answered in time. Errors are the destination's.

    `flow` is the definition, which is needed when no worker runs it.
    """
    path = existing_ledger(name, state)
    leases = Leases(path)
    try:
        runs = worker_of(leases, name) is not None
    finally:
        leases.close()
    if runs:
        return _ask(path, name, destination, tables, patience, who or operator())
    if flow is None:
        raise TransitionRefused(
            f"no worker runs flow {name}", remedy="Give the flow's file instead of its name: it says where the tables are."
        )
    uses = [use for use in flow.destinations if destination in (None, use.name)]
    if not uses:
        raise FlowUnknown(f"flow {name} has no destination {destination}", flow=name)
    found: list[dict[str, Any]] = []
    with holding(path, name, "flow resolve-staging") as lease:
        for use in uses:
            opened = _opened(flow, use, state)
            try:
                opened.fence(lease.generation)
                found += described(use.name, opened.resolve_staging(taking(tables)))
            finally:
                opened.close()
    return found


def _opened(flow: Flow, use: DestinationUse, state: Path) -> Destination:
    card = find("destination", use.type)
    place = Place(flow.name, use.name, staging_directory(flow, state) / use.name)
    made: Destination = card.load("destination")(place, card.options.model_validate(use.options))
    return made


def _ask(
    path: LedgerAddress, flow: str, destination: str | None, tables: Sequence[str], patience: float, who: str
) -> list[dict[str, Any]] | None:
    ledger = Ledger(path)
    try:
        asked = ledger.lifecycle.note(flow, ASKED, who, json.dumps({"destination": destination, "tables": list(tables)}))
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            for event in ledger.lifecycle.events(flow, 50, asked):
                if event.answers != asked:
                    continue
                if event.event == DONE:
                    found: list[dict[str, Any]] = json.loads(event.why or "[]")
                    return found
                if event.event == REFUSED:
                    raise from_data({"code": "destination_failed", "remedy": "", **json.loads(event.why or "{}")})
            time.sleep(0.1)
        return None
    finally:
        ledger.close()
