"""The destinations of a running flow: each made, checked, looped and ended, alone or together."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core import connectors
from penstock.core.flow import DestinationUse, Flow
from penstock.core.position import format_lsn, parse_lsn
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, Place
from penstock.destinations.sql import quoted
from penstock.engine.delivering import Assignment
from penstock.engine.intake import Intake
from penstock.engine.lanes import Lanes
from penstock.engine.lease import HeldLease
from penstock.engine.letters import Letters
from penstock.engine.loop import DestinationLoop
from penstock.engine.places import journal_directory, staging_directory
from penstock.engine.planner import Limits
from penstock.engine.quarantine import Quarantine
from penstock.engine.reloading import Changes, compare, past_refusing
from penstock.engine.session import SparkHost
from penstock.engine.status import DestinationStatus
from penstock.engine.switchboard import Switchboard
from penstock.errors import EngineError, JournalTrimmed, PenstockError, TableWithoutKey, from_data
from penstock.journal.reader import journal_mark
from penstock.ledger.leases import Holder
from penstock.ledger.ledger import Ledger
from penstock.sources.base import Source

MAX_ROWS = 100_000
ENDING = 10.0
"""Seconds that a loop has to end with its worker."""
PATIENCE = 60.0
"""Seconds that a loop has to end while the others go on."""


@dataclass(frozen=True)
class Surroundings:
    """What every loop of a worker shares."""

    state: Path
    source: Source
    host: SparkHost
    ledger: Ledger
    lease: HeldLease
    moved: Callable[[], None]
    """Called when a checkpoint has moved, or a loop has ended or come to rest."""


@dataclass(frozen=True)
class Beginning:
    """Where destinations begin that have no checkpoint yet, and what is known of the source then."""

    identity: str
    position: int
    discovered: Sequence[TableSchema]


class Loops:
    """One loop per destination of the flow; `flow` and the loops are replaced together, never half."""

    def __init__(self, flow: Flow, around: Surroundings) -> None:
        self._around = around
        self._opened = {use.name: self._open(flow, use) for use in flow.destinations}
        self._taking = self._rules(flow)
        self._board: Switchboard | None = None
        self._now: tuple[Flow, tuple[DestinationLoop, ...]] = (flow, ())

    @property
    def flow(self) -> Flow:
        """The flow as it is delivered now."""
        return self._now[0]

    @property
    def destinations(self) -> dict[str, Destination]:
        """The driver halves, by name."""
        return dict(self._opened)

    def __iter__(self) -> Iterator[DestinationLoop]:
        return iter(self._now[1])

    def checkpoints(self) -> tuple[Flow, dict[str, int]]:
        """The flow, and how far each of its destinations has come."""
        flow, loops = self._now
        return flow, {loop.status.name: loop.settled() for loop in loops}

    def places(self) -> list[str]:
        """Where each destination stands, in words."""
        starts = {use.name: use.start for use in self.flow.destinations}
        found = ((loop.status.name, loop.status.position) for loop in self)
        return [f"{name} at {format_lsn(at)}" if at else f"{name} from {starts[name]}" for name, at in found]

    def statuses(self) -> list[DestinationStatus]:
        """A moment of each destination."""
        now, found = time.time(), []
        for loop in self:
            s = loop.status
            lag, rate = loop.lag(now), loop.epochs_per_second()
            rows, counts = dict(s.rows), dict(s.counts)
            found.append(dataclasses.replace(s, rows=rows, counts=counts, lag_seconds=lag, epochs_per_second=rate))
        return found

    def check(self) -> None:
        """Refuses when a destination cannot work as it is set up, or none can at all."""
        problems = [p for name, d in self._opened.items() if (p := _problem(name, d)) is not None]
        final = [p for p in problems if p.retry != "timed"]
        if final or (problems and len(problems) == len(self._opened)):
            raise (final or problems)[0]

    def check_keys(self, tables: Sequence[TableSchema]) -> None:
        """Refuses a table without a key where a destination needs one, unless such a table is quarantined there."""
        for use in self.flow.destinations:
            if not _quarantines(self.flow, use):
                _check_keys(use, self._opened[use.name], tables)

    @property
    def board(self) -> Switchboard:
        """Where lanes call in, once the loops have been started."""
        assert self._board is not None
        return self._board

    def start(self, beginning: Beginning, *, paused: bool = False) -> None:
        """Lets every loop run; `paused` ones deliver nothing until `resume`."""
        self._board = Switchboard()
        flow = self.flow
        self._around.ledger.keep_destinations(flow.name, [use.name for use in flow.destinations], self._around.lease.generation)
        loops = tuple(self._loop(flow, use, self._opened[use.name], beginning) for use in flow.destinations)
        self._now = (flow, loops)
        for loop in loops:
            if paused:
                loop.pause()
            loop.start()

    def change(self, new: Flow, beginning: Beginning, *, failed: Sequence[str] = (), paused: bool) -> Changes:
        """Takes over another definition without disturbing what stays the same; a refusal changes nothing.

        Destinations that have `failed` are tried again.
        """
        old, loops = self._now
        changes = compare(old, new)
        changes = dataclasses.replace(changes, retried=tuple(name for name in failed if changes.leaves(name)))
        uses = {use.name: use for use in new.destinations}
        opened = {name: self._open(new, uses[name]) for name in changes.added}
        try:
            for name, destination in opened.items():
                problem = _problem(name, destination)
                if problem is not None and problem.retry != "timed":
                    raise problem
                if not _quarantines(new, uses[name]):
                    _check_keys(uses[name], destination, beginning.discovered)
                starting_position(uses[name], beginning.position, journal_directory(new, self._around.state))
        except PenstockError:
            for destination in opened.values():
                destination.close()
            raise
        with past_refusing(new.name):
            self._end([loop for loop in loops if loop.status.name in (*changes.removed, *changes.restarted, *changes.retried)])
            # Only now: a file that one process may open at a time is free again.
            opened |= {name: self._open(new, uses[name]) for name in (*changes.restarted, *changes.retried)}
            self._opened |= opened
            self._around.ledger.keep_destinations(new.name, list(uses), self._around.lease.generation)
            self._taking = self._rules(new)
            stay = {loop.status.name: loop for loop in loops}
            began = {name: stay[name].beginning for name in changes.retried}
            made = {name: self._loop(new, uses[name], opened[name], beginning, began.get(name)) for name in opened}
        self._now = (new, tuple(made.get(name) or stay[name] for name in uses))
        for loop in made.values():
            # What loads have become since it was made, nobody has told it.
            loop.notice_loads()
            if paused:
                loop.pause()
            loop.start()
        self._around.moved()
        return changes

    def _end(self, loops: Sequence[DestinationLoop]) -> None:
        for loop in loops:
            loop.stop()
        for loop in loops:
            loop.join(PATIENCE)
            if loop.is_alive():
                raise EngineError(
                    f"destination {loop.status.name} did not end within {PATIENCE:.0f} s",
                    remedy="Look at what its server does; a worker that is started anew has the new definition.",
                )
            loop.close()
            self._opened.pop(loop.status.name).close()

    def notice(self) -> None:
        """The journal has grown."""
        for loop in self:
            loop.notice()

    def notice_loads(self) -> None:
        """Something about loads has changed."""
        for loop in self:
            loop.notice_loads()

    def has_begun(self, destination: str, load: int) -> bool:
        """Whether rows of a load may be read, as far as a destination is concerned."""
        return all(loop.has_begun(load) for loop in self if loop.status.name == destination)

    def has_ended(self, destination: str, load: int) -> bool:
        """Whether the destination knows that it has all of a load."""
        return any(loop.has_ended(load) for loop in self if loop.status.name == destination)

    def takes(self) -> dict[str, Callable[[str, str], bool]]:
        """By destination, which tables it has; one that begins anew with other options has its place meanwhile."""
        return self._taking

    def _rules(self, flow: Flow) -> dict[str, Callable[[str, str], bool]]:
        return {use.name: self._opened[use.name].options.takes for use in flow.destinations}

    def pause(self) -> None:
        """Nothing is delivered from soon on."""
        for loop in self:
            loop.pause()

    def resume(self) -> None:
        """Delivery goes on."""
        for loop in self:
            loop.resume()

    def failed(self) -> tuple[str, ...]:
        """The destinations that are not tried any more, and could go on from where they stand."""
        return tuple(loop.status.name for loop in self if loop.status.state == "failed" and not loop.is_released())

    def are_quiet(self) -> bool:
        """Whether nothing more comes after `pause`."""
        return all(loop.is_quiet() for loop in self)

    def close(self) -> None:
        """Ends every loop, then its lanes and its destination; one's trouble does not keep another up."""
        loops = tuple(self)
        with contextlib.ExitStack() as stack:
            if self._board is not None:
                stack.callback(self._board.close)
            for destination in self._opened.values():
                stack.callback(destination.close)
            for loop in loops:
                stack.callback(loop.close)
            for loop in loops:
                loop.stop()
            for loop in loops:
                if loop.is_alive():
                    loop.join(ENDING)

    def _open(self, flow: Flow, use: DestinationUse) -> Destination:
        card = connectors.find("destination", use.type)
        found: Destination = card.load("destination")(self._place(flow, use), card.options.model_validate(use.options))
        return found

    def _load_first(self, flow: Flow, use: DestinationUse, destination: Destination, beginning: Beginning) -> None:
        """A destination that joins a flow which runs already has its tables loaded before it follows the stream."""
        takes = destination.options.takes
        tables = [(t.schema, t.name) for t in beginning.discovered if t.identity and takes(t.schema, t.name)]
        position = starting_position(use, beginning.position, journal_directory(flow, self._around.state))
        spec, who = {"destinations": [use.name]}, str(Holder.here())
        loads, generation = self._around.ledger.loads, self._around.lease.generation
        loads.begin(flow.name, generation, "table", spec, who, {use.name: tables}, position)

    def _begins(self, flow: Flow, use: DestinationUse, oldest: int) -> int:
        """The position after which a destination begins that has no checkpoint."""
        loads = self._around.ledger.loads
        entered = {e.load for e in loads.entries(flow.name, use.name)}
        if any(load.id in entered and load.kind == "first" for load in loads.all(flow.name)):
            # What the flow's first load does not show came after the slot's beginning, however late the destination comes.
            return oldest
        return starting_position(use, oldest, journal_directory(flow, self._around.state))

    def _place(self, flow: Flow, use: DestinationUse) -> Place:
        return Place(flow.name, use.name, staging_directory(flow, self._around.state) / use.name)

    def _loop(
        self, flow: Flow, use: DestinationUse, destination: Destination, beginning: Beginning, began: int | None = None
    ) -> DestinationLoop:
        """`began` is where it began before, if it did."""
        assert self._board is not None
        around, journal = self._around, journal_directory(flow, self._around.state)
        aside = flow.config.dead_letter
        destination.sets_aside = aside.enabled
        setup: dict[str, Any] = {
            "flow": flow.name,
            "name": use.name,
            "destination": use.type,
            "options": use.options,
            "source": flow.source.type,
            "completion": around.source.completion(),
            "decoding": around.source.decoding(),
            "staging": str(self._place(flow, use).staging),
            "journal": str(journal),
            "dead_letter": {"enabled": aside.enabled, "later": aside.later},
        }
        known = around.ledger.checkpoint(flow.name, use.name)
        if known is None and use.start == "backfill" and not around.ledger.loads.entries(flow.name, use.name):
            self._load_first(flow, use, destination, beginning)
        if began is None:
            began = beginning.position if known is not None else self._begins(flow, use, beginning.position)
        status = DestinationStatus(use.name, use.type, position=known.position if known is not None else 0)
        lease, limits = around.lease, _limits(flow, use, around.source)
        lanes = Lanes(around.host, self._board, f"{flow.name}/{use.name}", setup, flow.parallelism, lambda: lease.deadline)
        given = Assignment(
            flow=flow.name,
            source=beginning.identity,
            generation=lease.generation,
            journal=journal,
            destination=destination,
            lanes=lanes,
            ledger=around.ledger,
            letters=Letters(around.ledger, flow.name, lease.generation, aside, status),
            quarantine=Quarantine(around.ledger, flow.name, lease.generation, journal, status, enabled=_quarantines(flow, use)),
            intake=Intake(around.ledger, flow.name, lease.generation, use.name, journal, limits.max_bytes),
            beginning=began,
            limits=limits,
            status=status,
            discovered=beginning.discovered,
            moved=around.moved,
            lease=lease,
        )
        # Known before anybody asks how far it is: what a table has still to catch up with is neither told nor trimmed.
        given.intake.refresh()
        given.quarantine.load()
        return DestinationLoop(
            given, retry=use.retry or flow.config.retry, give_up=flow.config.give_up_policy == "on_retry_exhaustion"
        )


def starting_position(use: DestinationUse, oldest: int, journal: Path) -> int:
    """The position after which a new destination begins; JournalTrimmed when the journal has not what it is to begin with."""
    # A journal that is being made has no index yet: it begins, and ends, where the source does.
    mark = journal_mark(journal) or oldest
    if use.start in ("oldest", "now", "backfill"):
        return oldest if use.start == "oldest" else mark
    wanted = parse_lsn(use.start)
    if not oldest <= wanted <= mark:
        raise JournalTrimmed(
            f"destination {use.name} is to start at {use.start}, and the journal has {format_lsn(oldest)} to {format_lsn(mark)}",
            remedy="Set `start` to a position in between, to oldest, to now, or to backfill.",
        )
    return wanted


def _problem(name: str, destination: Destination) -> PenstockError | None:
    findings = [f for f in destination.check() if not f.ok]
    if not findings:
        return None
    first = findings[0]
    message = f"destination {name}: {first.detail or first.subject}"
    return from_data({"code": first.code or "destination_failed", "message": message, "remedy": first.remedy})


def _check_keys(use: DestinationUse, destination: Destination, tables: Sequence[TableSchema]) -> None:
    if not connectors.find("destination", use.type).capabilities.get("needs_key"):
        return
    for table in tables:
        if not table.key and destination.options.takes(table.schema, table.name):
            raise TableWithoutKey(
                f"destination {use.name}: table {table.qualified} has no key to apply changes by",
                remedy=f"ALTER TABLE {quoted(table.schema)}.{quoted(table.name)} ADD PRIMARY KEY (…); or exclude it:"
                f" destinations[{use.name}].options.exclude: [{table.qualified}]",
            )


def _quarantines(flow: Flow, use: DestinationUse) -> bool:
    return (use.on_table_failure or flow.config.on_table_failure) == "quarantine"


def _limits(flow: Flow, use: DestinationUse, source: Source) -> Limits:
    rules = (use.batch, flow.config.batch)
    capabilities = connectors.find("destination", use.type).capabilities
    said = source.batching()
    return Limits(
        max_rows=_first(rules[0].max_rows, rules[1].max_rows, said.rows, MAX_ROWS),
        max_bytes=_first(rules[0].max_bytes, rules[1].max_bytes, int(capabilities.get("max_bytes", 64 << 20))),
        max_wait=_first(rules[0].max_wait, rules[1].max_wait, said.wait, float(capabilities.get("max_wait", 0.0))),
        parallelism=flow.parallelism,
        record_empty=said.empty,
        stages=not capabilities.get("sends"),
        truncates_alone=bool(capabilities.get("sends")),
        splits=not _first(rules[0].respect_source_tx, rules[1].respect_source_tx, True),
    )


def _first(*choices: Any) -> Any:
    return next(c for c in choices if c is not None)
