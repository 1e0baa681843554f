"""A destination's loop over a captured journal, its lanes in its own thread: all of the engine but Spark."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.core import connectors
from penstock.core.flow import DeadLetterRules, RetryRules
from penstock.destinations.base import Place
from penstock.engine import lease as leasing
from penstock.engine.delivering import Assignment
from penstock.engine.intake import Intake
from penstock.engine.lane import Work
from penstock.engine.lanes import Lanes
from penstock.engine.letters import Letters
from penstock.engine.loop import DestinationLoop
from penstock.engine.places import ledger_address
from penstock.engine.planner import Limits
from penstock.engine.quarantine import Quarantine
from penstock.engine.status import DestinationStatus
from penstock.ledger.ledger import Ledger
from penstock.observe import failpoints
from tests.conftest import Database
from tests.flows import wait_until
from tests.sources.postgres.captured import Captured


class Killed(BaseException):
    """What a failpoint does to a loop that runs inside the test."""


class LanesHere(Lanes):
    """Lanes that work when they are asked for receipts; what they are told and answer travels as plain data.

    `eager` ones have done their work when `ask` returns.
    """

    def __init__(self, setup: dict[str, Any], count: int, *, eager: bool = False) -> None:
        self._eager, self._done = eager, list[dict[str, Any]]()
        self._works = [Work(setup) for _ in range(count)]
        self._work: list[dict[str, Any]] = []
        self.asked: list[list[dict[str, Any]]] = []
        self._ends = Pipe()

    def begin(self) -> None:
        return

    def are_ready(self) -> bool:
        return True

    def interrupt(self, after: float = 0.0) -> None:
        return

    def resume(self) -> None:
        return

    def abandon(self) -> None:
        return

    def ask(self, descriptors: Sequence[dict[str, Any]]) -> None:
        self._work = [_travelled({**descriptor, "ask": 1}) for descriptor in descriptors]
        self.asked.append(self._work)
        self._done = self._worked() if self._eager else []

    def gather(self) -> list[dict[str, Any]]:
        return self._done if self._eager else self._worked()

    def _worked(self) -> list[dict[str, Any]]:
        return [_travelled(self._works[i].do(work, self._ends[0])) for i, work in enumerate(self._work)]

    def close(self) -> None:
        for work in self._works:
            work.close()
        for end in self._ends:
            end.close()


def _travelled(message: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    return found


class Delivery:
    """One destination of a flow named `flow`; each `start` is another worker's."""

    def __init__(self, database: Database, directory: Path, kind: str, lanes: int = 1, **options: Any) -> None:
        self.database, self.directory, self.kind, self.options = database, directory, kind, options
        self.rules = DeadLetterRules()
        self.quarantines = False
        stages = not connectors.find("destination", kind).capabilities.get("sends")
        self.limits = Limits(max_rows=100_000, max_bytes=64 << 20, max_wait=0.0, parallelism=lanes, stages=stages)
        self.eager = False
        self.captured = Captured(database, directory / "journal")
        self.state = directory / "state"
        self.loop: DestinationLoop | None = None
        self.lanes: LanesHere | None = None
        self.was_killed = False

    def start(self) -> DestinationLoop:
        """A worker's share: takes the flow over and delivers until `stop`."""
        card = connectors.find("destination", self.kind)
        place = Place("flow", "target", self.directory / "staging")
        setup = {
            "flow": "flow",
            "name": "target",
            "destination": self.kind,
            "options": self.options,
            "source": "postgres",
            "staging": str(place.staging),
            "journal": str(self.captured.directory),
            "dead_letter": {"enabled": self.rules.enabled, "later": self.rules.later},
        }
        self.ledger = Ledger(ledger_address(self.state))
        lease = leasing.take(ledger_address(self.state), "flow", "worker")
        assert lease is not None
        self.lease, generation = lease, lease.generation
        self.ledger.take_over("flow", self.captured.prepared.identity, "{}", generation)
        self.destination = card.load("destination")(place, card.options.model_validate(self.options))
        self.destination.sets_aside = self.rules.enabled
        status = DestinationStatus("target", self.kind)
        self.lanes = LanesHere(setup, self.limits.parallelism, eager=self.eager)
        given = Assignment(
            flow="flow",
            source=self.captured.prepared.identity,
            generation=generation,
            journal=self.captured.directory,
            destination=self.destination,
            lanes=self.lanes,
            ledger=self.ledger,
            letters=Letters(self.ledger, "flow", generation, self.rules, status),
            quarantine=Quarantine(self.ledger, "flow", generation, self.captured.directory, status, enabled=self.quarantines),
            intake=Intake(self.ledger, "flow", generation, "target", self.captured.directory, self.limits.max_bytes),
            beginning=self.captured.prepared.start,
            limits=self.limits,
            status=status,
            discovered=self.captured.source.discover(),
            moved=lambda: None,
            lease=lease,
        )
        self.loop = DestinationLoop(
            given, retry=RetryRules.model_validate({"base": "10ms", "max": "100ms", "max_attempts": 3}), give_up=True
        )
        self.before_start()
        self._thread = threading.Thread(target=self._run, args=(self.loop,))
        self._thread.start()
        return self.loop

    def before_start(self) -> None:
        """What a worker does before its loops run."""

    def _run(self, loop: DestinationLoop) -> None:
        try:
            loop.run()
        except Killed:
            self.was_killed = True

    def stop(self) -> None:
        """Ends the worker's share, also one that was killed or has failed."""
        if self.loop is not None:
            self.loop.stop()
            self._thread.join(30)
            self.loop.close()
            self.destination.close()
            self.ledger.close()
            self.lease.give_up()
            self.loop = None

    def settle(self, *, with_replays: bool = False) -> None:
        """Waits until everything that is in the source now is delivered or set aside, and what was asked for is replayed."""
        assert self.loop is not None
        loop = self.loop
        if with_replays:
            # The command's mark is seen within a second, and by then the replay may be over; an epoch without changes needs a log
            # that has moved.
            wait_until(lambda: self._has_looked(loop) or self._has_ended(), 60, "no replay was seen")
            self.database.execute("select pg_logical_emit_message(true, 'x', 'y')")
        self.captured.drain()
        mark = self.captured.mark

        def there() -> bool:
            loop.notice()
            return self._has_ended() or (loop.status.position >= mark and loop.is_idle() and not loop.owes())

        wait_until(there, 60, f"not delivered: {loop.status}")
        assert self.was_killed or loop.error is None, loop.error

    def _has_looked(self, loop: DestinationLoop) -> bool:
        """Whether the loop knows what commands have done to the letters."""
        return loop._letters._mark == self.ledger.letters.mark("flow", "target")

    def _has_ended(self) -> bool:
        return self.was_killed or not self._thread.is_alive()


def deadly_failpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes failpoints end the loop that reaches them instead of the process."""
    import os

    def kill(process: int, number: int) -> None:
        failpoints.arm("")
        raise Killed

    monkeypatch.setattr(failpoints, "os", SimpleNamespace(kill=kill, getpid=os.getpid, environ={}, path=os.path))
