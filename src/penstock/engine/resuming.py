"""Where a destination goes on: what it holds itself, and what the ledger knows of it."""

from __future__ import annotations

import structlog

from penstock.core.position import format_lsn
from penstock.destinations.base import Destination, Held
from penstock.engine.lease import HeldLease
from penstock.ledger.ledger import Checkpoint, Ledger

_log = structlog.get_logger()


class Resuming:
    """Brings a destination and the ledger together before anything is sent."""

    def __init__(self, flow: str, name: str, destination: Destination, ledger: Ledger, lease: HeldLease, beginning: int) -> None:
        """`beginning` is where a destination that has nothing yet starts."""
        self._flow, self._name, self._beginning = flow, name, beginning
        self._destination, self._ledger, self._lease = destination, ledger, lease

    def checkpoint(self, held: Held | None) -> Checkpoint:
        """Where the ledger has the destination; one that was moved back since it was last asked goes along."""
        found = self._ledger.checkpoint(self._flow, self._name)
        if found is None:
            # A lost ledger must not make a destination that holds its position take everything again, nor use a number twice.
            position, number, part = (held.position, held.epoch, held.part) if held is not None else (0, 0, 0)
            position, part = (position, part) if position >= self._beginning else (self._beginning, 0)
            found = self._ledger.begin(self._flow, self._name, position, self._lease.generation, number, part)
        if held is not None and held.epoch < found.epoch and self._ledger.is_rewound(self._flow, self._name, found.epoch):
            self._lease.check()
            self._destination.rewind(found.position, found.epoch)
            _log.info("destination rewound", destination=self._name, position=format_lsn(found.position))
        return found

    def follow(self, held: Held, known: Checkpoint) -> Checkpoint:
        """The destination has committed epochs that the ledger does not know: one without changes, or the ledger is older."""
        position, part = max((held.position, held.part), (known.position, known.part))
        reached = Checkpoint(position, held.epoch, part)
        self._ledger.follow(self._flow, self._name, reached, self._lease.generation)
        _log.info("destination is ahead of the ledger", destination=self._name, epoch=held.epoch)
        return reached
