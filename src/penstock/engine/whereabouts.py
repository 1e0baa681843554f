"""The whereabouts of a journal: the ledger may be everybody's, the journal is one machine's, and must not be begun twice."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import structlog

from penstock.errors import JournalElsewhere, LedgerError
from penstock.journal.segment import segment_numbers
from penstock.ledger.ledger import Ledger

_log = structlog.get_logger()


class Whereabouts:
    """One flow's journal on this machine, and what the ledger says of it; for any thread."""

    def __init__(self, ledger: Ledger, flow: str, journal: Path) -> None:
        self._ledger, self._flow, self._journal = ledger, flow, journal
        self._place = f"{socket.gethostname()}:{journal}"
        self._known = False
        self._lock = threading.Lock()

    def refuse_elsewhere(self) -> None:
        """JournalElsewhere when the flow has a journal and it is not here."""
        found = self._ledger.flows.find(self._flow)
        if found is None or found.journal is None or segment_numbers(self._journal):
            return
        raise JournalElsewhere(
            f"the journal of flow {self._flow} was kept in {found.journal}, and there is none in {self._place}", flow=self._flow
        )

    def record(self, generation: int) -> bool:
        """Whether the ledger knows that the journal is here; it is told first if it does not. Nothing is raised."""
        if self._known:
            return True
        with self._lock:
            if not self._known and segment_numbers(self._journal):
                try:
                    self._ledger.place_journal(self._flow, generation, self._place)
                    self._known = True
                except LedgerError as error:
                    # The source is told nothing meanwhile, and the next checkpoint that moves tries again.
                    _log.warning("where the journal is was not recorded", code=error.code, reason=error.message)
        return self._known
