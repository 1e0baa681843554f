"""The service layer: everything that may be asked of a control plane, whoever asks and by whatever face."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from penstock import __version__
from penstock.control.answers import EventPage, ServerAnswer
from penstock.control.backfill_service import Backfills
from penstock.control.caller import Caller
from penstock.control.catalog import Catalog
from penstock.control.commands import Commands
from penstock.control.flows import Flows, event_answer
from penstock.control.histories import Histories
from penstock.control.letter_service import Letters
from penstock.control.lifecycle import runner_of
from penstock.control.overview import state_of
from penstock.control.people import People
from penstock.control.premises import Premises
from penstock.control.source_service import Sources
from penstock.control.upkeep_service import Upkeep
from penstock.errors import FlowUnknown

MOST_EVENTS = 500
SECRET_FILES = "/run/secrets"


class Service:
    """One ledger's control plane; safe to use from several threads."""

    def __init__(self, state: Path, secret_files: Sequence[Path] = (), *, logs: bool = False) -> None:
        """`secret_files` are directories that definitions may refer to, besides `secrets/` of the state directory.

        With `logs` what is asked is logged as well as recorded.
        """
        self.premises = Premises(state, (state / "secrets", Path(SECRET_FILES), *secret_files), logs)
        self.flows = Flows(self.premises)
        self.commands = Commands(self.premises)
        self.upkeep = Upkeep(self.premises)
        self.letters = Letters(self.premises)
        self.backfills = Backfills(self.premises)
        self.sources = Sources(self.premises)
        self.catalog = Catalog(self.premises)
        self.histories = Histories(self.premises)
        self.people = People(self.premises)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back the ledger."""
        self.premises.close()

    def events(self, caller: Caller, *, flow: str | None = None, after: int = 0, limit: int = 100) -> EventPage:
        """The first events after that one, of a flow or of all. FlowUnknown."""
        caller.require("viewer")
        ledger = self.premises.ledger
        if flow is not None and ledger.register.find(flow) is None:
            raise FlowUnknown(f"there is no flow named {flow}", flow=flow)
        found = ledger.lifecycle.after(after, max(1, min(limit, MOST_EVENTS)), flow)
        return EventPage(events=[event_answer(name, event) for name, event in found], last=found[-1][1].id if found else after)

    def newest_event(self, caller: Caller) -> int:
        """The number of the newest event."""
        caller.require("viewer")
        return self.premises.ledger.lifecycle.newest()

    def server(self, caller: Caller, launcher: str | None = None, spark: str | None = None) -> ServerAnswer:
        """What runs here."""
        caller.require("viewer")
        counts: Counter[str] = Counter()
        after = ""
        while batch := self.premises.ledger.register.page(after, 1000):
            counts.update(state_of(entry.state, entry.lease, entry.deleting) for entry in batch)
            after = batch[-1].name
        runner = runner_of(self.premises.leases)
        holder = str(runner.holder) if runner is not None else None
        return ServerAnswer(version=__version__, runner=holder, launcher=launcher, spark=spark, flows=dict(counts))
