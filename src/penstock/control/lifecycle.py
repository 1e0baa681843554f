"""Pause, resume, stop and start: the wish is written to the ledger, and its fulfilment by the worker is waited for."""

from __future__ import annotations

import getpass
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.engine.places import ledger_address
from penstock.errors import FlowUnknown, TransitionRefused
from penstock.ledger.address import LedgerAddress
from penstock.ledger.flows import KnownFlow
from penstock.ledger.leases import Lease, Leases
from penstock.ledger.ledger import Ledger
from penstock.ledger.lifecycle import Event, Wish

Command = Literal["pause", "resume", "stop", "start", "run"]

RUNNER = "@runner"
"""The lease of whoever starts and watches workers on a ledger; no flow can have this name."""

_SETTLED = {"pause": "paused", "resume": "running", "stop": "stopped"}
"""The state in which the worker records that it has done what was asked."""


@dataclass(frozen=True)
class Answer:
    """What a command has done."""

    flow: str
    wish: Wish
    changed: bool
    """False when the flow was already wished so."""
    holder: str | None
    """Who runs the flow; None when nobody does."""
    settled: bool
    """Whether it has come true: the worker has done it, or none runs."""
    failure: str | None = None
    """Why not: the flow has failed since; a runner may start it again."""

    def to_data(self) -> dict[str, Any]:
        """Plain data for an answer."""
        return {
            "flow": self.flow,
            "wished": self.wish.state,
            "by": self.wish.who or None,
            "why": self.wish.why,
            "changed": self.changed,
            "worker": self.holder,
            "settled": self.settled,
            "failure": self.failure,
        }


def operator() -> str:
    """Who gives a command here."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def ask(command: Command, flow: str, state: Path, *, why: str | None, known: bool, patience: float = 10.0) -> Answer:
    """Asks the flow's worker, present or future, and waits for it as long as that; FlowUnknown, TransitionRefused.

    `known` says that the flow exists although no worker has run it yet.
    """
    path = existing_ledger(flow, state) if not known else ledger_address(state)
    ledger, leases = Ledger(path), Leases(path)
    try:
        return ask_worker(ledger, leases, command, flow, who=operator(), why=why, known=known, patience=patience)
    finally:
        ledger.close()
        leases.close()


def ask_worker(
    ledger: Ledger,
    leases: Leases,
    command: Command,
    flow: str,
    *,
    who: str,
    why: str | None,
    known: bool = False,
    patience: float = 10.0,
) -> Answer:
    """The same in an open ledger, for somebody."""
    wish, changed = ledger.lifecycle.ask(command, flow, who, why, known=known)
    settled, lease = wait_for(ledger, leases, command, flow, wish, patience)
    found = ledger.lifecycle.flow(flow) if not settled and lease is None else None
    failure = found.reason if found is not None and _has_failed(found, wish) else None
    return Answer(flow, wish, changed, str(lease.holder) if lease is not None else None, settled, failure)


def wait_for(
    ledger: Ledger, leases: Leases, command: Command, flow: str, wish: Wish, patience: float
) -> tuple[bool, Lease | None]:
    """Whether what a command has wished has come true by then, and who runs the flow."""
    deadline = time.monotonic() + patience
    while True:
        lease = worker_of(leases, flow)
        settled = _has_settled(ledger, leases, command, flow, lease, wish)
        if settled is not None or time.monotonic() > deadline:
            return bool(settled), lease
        time.sleep(0.05)


def _has_settled(ledger: Ledger, leases: Leases, command: Command, flow: str, lease: Lease | None, wish: Wish) -> bool | None:
    """Whether what was asked has come true; False when it will not, None while it may."""
    if command == "stop":
        return True if lease is None else None
    found = ledger.lifecycle.flow(flow)
    if lease is not None:
        return True if found is not None and found.state == _SETTLED.get(command, "running") else None
    if ledger.definitions.find(flow) is None or runner_of(leases) is None:
        # Nobody starts a worker for it by himself: the wish is all there is.
        return True
    failed = found is not None and _has_failed(found, wish)
    # A pause comes true without a worker; who is to deliver needs one, and the runner is about to start it.
    return False if failed else True if command in ("pause", "run") else None


def _has_failed(found: KnownFlow, wish: Wish) -> bool:
    """Whether that came after the wish."""
    return found.state == "failed" and found.updated_at > wish.at


def runner_of(leases: Leases) -> Lease | None:
    """The lease of whoever starts and watches workers on this ledger; None when nobody does."""
    lease = leases.find(RUNNER)
    return lease if lease is not None and not lease.is_free() else None


def reload(flow: str, state: Path, patience: float = 60.0) -> Event | None:
    """Has the flow's worker read its file again; what it says of that, None when it has not answered in time.

    FlowUnknown, and TransitionRefused when no worker runs it.
    """
    path = existing_ledger(flow, state)
    ledger, leases = Ledger(path), Leases(path)
    try:
        return reload_worker(ledger, leases, flow, operator(), patience)
    finally:
        ledger.close()
        leases.close()


def reload_worker(ledger: Ledger, leases: Leases, flow: str, who: str, patience: float = 60.0) -> Event | None:
    """The same in an open ledger, for somebody."""
    if worker_of(leases, flow) is None:
        raise _nobody_to_reload(flow)
    asked, question = ledger.lifecycle.ask_reload(flow, who)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        is_gone = worker_of(leases, flow) is None
        for event in ledger.lifecycle.events(flow, 20, asked):
            # One that somebody asked for before, or a signal, may have read another definition than this one is about.
            if event.event in ("reloaded", "reload refused") and event.answers is not None and event.answers >= question:
                return event
        if is_gone:
            # It has ended without an answer, and the next one reads the definition when it starts.
            raise _nobody_to_reload(flow)
        time.sleep(0.05)
    return None


def _nobody_to_reload(flow: str) -> TransitionRefused:
    return TransitionRefused(
        f"no worker runs flow {flow}",
        remedy="Nothing to do: a worker that is started reads the file as it is.",
        flow=flow,
    )


def existing_ledger(flow: str, state: Path) -> LedgerAddress:
    """The ledger of the state directory; FlowUnknown where there is none, so that asking makes nothing."""
    path = ledger_address(state)
    if not path.exists():
        raise FlowUnknown(f"there is no ledger in {state}, so no flow named {flow}", flow=flow)
    return path


def worker_of(leases: Leases, flow: str) -> Lease | None:
    """The lease of the worker that runs the flow now; None when none does."""
    lease = leases.find(flow)
    return lease if lease is not None and lease.purpose == "worker" and not lease.looks_over() else None
