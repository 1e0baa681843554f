"""The ledger: who runs a flow, what was planned, and how far each destination has come. Every write carries the generation."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from penstock.core.epoch import Epoch
from penstock.errors import FlowChanged, LeaseLost
from penstock.ledger.address import LedgerAddress
from penstock.ledger.audit import Audit
from penstock.ledger.database import LedgerDatabase
from penstock.ledger.definitions import Definitions
from penstock.ledger.flows import Flows, keep_labels
from penstock.ledger.history import History
from penstock.ledger.letters import DeadLetters
from penstock.ledger.lifecycle import Lifecycle, refuse_deleted
from penstock.ledger.load_sums import LoadSums
from penstock.ledger.loads import Loads
from penstock.ledger.partaking import Partaking
from penstock.ledger.quarantines import Quarantines
from penstock.ledger.register import Register
from penstock.ledger.statement import Statement
from penstock.ledger.tokens import Tokens

HISTORY = 1000
"""How many closed epochs per destination are kept."""

_EPOCH_FIELDS = "flow, destination, source, number, after, upto, buckets, generation, after_part, upto_part, work"

_PLAN = Statement(
    f"insert into epochs ({_EPOCH_FIELDS}, state, changes, planned_at)"
    " values (:flow, :destination, :source, :number, :after, :upto, :buckets, :generation, :after_part, :upto_part, :work,"
    " 'planned', :changes, :t)"
)
_CLOSE = Statement("update epochs set state = 'closed', closed_at = :t where flow = :f and destination = :d and number = :n")
_MOVE = Statement(
    "update checkpoints set position = :p, epoch = :n, part = :part, updated_at = :t where flow = :f and destination = :d"
)
_ADVANCE = Statement(
    "update checkpoints set position = :p, part = 0, updated_at = :t where flow = :f and destination = :d and position < :p"
)
_FORGET = Statement("delete from epochs where flow = :f and destination = :d and number = :n")


@dataclass(frozen=True)
class Checkpoint:
    """A destination's durable position, and the number of the epoch that brought it there."""

    position: int
    epoch: int
    part: int = 0
    """How many changes of the transaction that follows the position it has too."""

    @classmethod
    def after(cls, epoch: Epoch) -> Checkpoint:
        """The checkpoint of a destination that has the epoch."""
        return cls(epoch.upto, epoch.number, epoch.upto_part)


class Ledger:
    """A facade over narrow stores; every method is one durable transaction."""

    def __init__(self, where: LedgerAddress | Path) -> None:
        """A path is that of a SQLite file. LedgerUnreachable, LedgerUnusable, LedgerNewer."""
        self._database = LedgerDatabase(where)
        self.flows = Flows(self._database)
        """What is known of flows, page by page."""
        self.lifecycle = Lifecycle(self._database)
        """Wishes of operators, and what became of them."""
        self.letters = DeadLetters(self._database)
        self.definitions = Definitions(self._database)
        """Flows that were created here rather than run from a file."""
        self.register = Register(self._database)
        """Every flow, page by page."""
        self.tokens = Tokens(self._database)
        self.audit = Audit(self._database)
        self.history = History(self._database)
        self.quarantines = Quarantines(self._database, self._fenced)
        self.loads = Loads(self._database, self._fenced)
        self.partaking = Partaking(self.loads, self._fenced)
        self.load_sums = LoadSums(self._database, self._fenced)
        """How far loads have come."""

    def close(self) -> None:
        """Gives back the connection."""
        self._database.close()

    def take_over(self, flow: str, identity: str, definition: str, leased: int | None = None) -> int:
        """Makes the caller the one who may act for the flow; returns its generation. FlowChanged when the source is another.

        `leased` is the generation of the caller's lease; LeaseLost when another has taken it meanwhile.
        """
        with self._database.transaction(flow) as c:
            if leased is not None and c.scalar(sa.text("select generation from leases where flow = :n"), {"n": flow}) != leased:
                raise LeaseLost(f"flow {flow} was taken over before this worker had begun", flow=flow)
            refuse_deleted(c, flow)
            row = c.execute(sa.text("select identity, generation from flows where name = :n"), {"n": flow}).one_or_none()
            # A flow that was created and has never begun has no source yet.
            if row is not None and row.identity not in ("", identity):
                raise FlowChanged(f"flow {flow} was begun on another source ({row.identity}); this one is {identity}", flow=flow)
            # A ledger that was lost does not count from 1 again: destinations would take its worker for an older one.
            generation = leased or (int(time.time()) if row is None else int(row.generation) + 1)
            c.execute(
                sa.text(
                    "insert into flows (name, identity, definition, generation, state, updated_at)"
                    " values (:n, :i, :d, :g, 'running', :t) on conflict (name) do update set definition = excluded.definition,"
                    " identity = excluded.identity, generation = excluded.generation, state = 'running', reason = null,"
                    " updated_at = excluded.updated_at"
                ),
                {"n": flow, "i": identity, "d": definition, "g": generation, "t": _now()},
            )
            keep_labels(c, flow, definition)
            return generation

    def leave(self, flow: str, generation: int, state: str, reason: str | None = None) -> None:
        """Records how the caller's run ended; nothing when another has taken over."""
        with self._database.transaction() as c:
            c.execute(
                sa.text("update flows set state = :s, reason = :r, updated_at = :t where name = :n and generation = :g"),
                {"s": state, "r": reason, "t": _now(), "n": flow, "g": generation},
            )

    def identity(self, flow: str) -> str | None:
        """The source's identity as the flow's state has it."""
        with self._database.reading() as c:
            found: str | None = c.scalar(sa.text("select identity from flows where name = :n"), {"n": flow})
            return found or None

    def checkpoints(self, flow: str) -> dict[str, int]:
        """How far each destination of the flow has come; without those that were removed."""
        return self._positions(flow, "removed_at is null")

    def removed(self, flow: str) -> dict[str, int]:
        """How far destinations had come that the flow has no longer."""
        return self._positions(flow, "removed_at is not null")

    def _positions(self, flow: str, which: str) -> dict[str, int]:
        with self._database.reading() as c:
            sql = f"select destination, position from checkpoints where flow = :f and {which} order by destination"
            return {row.destination: int(row.position) for row in c.execute(sa.text(sql), {"f": flow}).all()}

    def forget(self, flow: str) -> None:
        """Removes every row of the flow: its next start is its first. A worker that still runs it is fenced.

        Of a flow that was created here the definition stays, as if it had just been created.
        """
        with self._database.transaction(flow) as c:
            self.loads.forget(c, flow)
            if self.definitions.reset(c, flow):
                return
            for statement in (
                "delete from flow_labels where flow = :f",
                "delete from dead_letters where flow = :f",
                "delete from quarantines where flow = :f",
                "delete from epochs where flow = :f",
                "delete from checkpoints where flow = :f",
                "delete from flow_events where flow = :f",
                "delete from wishes where flow = :f",
                "delete from leases where flow = :f",
                "delete from flows where name = :f",
            ):
                c.execute(sa.text(statement), {"f": flow})

    def keep_destinations(self, flow: str, names: Sequence[str], generation: int) -> None:
        """Marks the checkpoints of destinations that the flow has no longer as removed, and those of others as not.

        Open loads go on without those that are gone, and without those that were away.
        """
        here: sa.BindParameter[Any] = sa.bindparam("names", type_=sa.String, expanding=True)
        with self._fenced(flow, generation) as c:
            away = "select destination from checkpoints where flow = :f and removed_at is not null and destination in :names"
            back = c.scalars(sa.text(away).bindparams(here), {"f": flow, "names": list(names)}).all()
            self.partaking.follow(c, flow, names, back)
            for sql in (
                "update checkpoints set removed_at = :t where flow = :f and removed_at is null and destination not in :names",
                "update checkpoints set removed_at = null where flow = :f and removed_at is not null and destination in :names",
            ):
                c.execute(sa.text(sql).bindparams(here), {"t": _now(), "f": flow, "names": list(names)})

    def redefine(self, flow: str, definition: str, generation: int) -> None:
        """Keeps what the flow's definition says now."""
        with self._fenced(flow, generation) as c:
            sql = "update flows set definition = :d, updated_at = :t where name = :n"
            c.execute(sa.text(sql), {"d": definition, "t": _now(), "n": flow})
            keep_labels(c, flow, definition)

    def place_journal(self, flow: str, generation: int, place: str) -> None:
        """Keeps where the flow's journal lies; before the source is told anything, which from then on only the journal has."""
        with self._fenced(flow, generation) as c:
            c.execute(sa.text("update flows set journal = :j where name = :n"), {"j": place, "n": flow})

    def memory(self, flow: str) -> dict[str, Any]:
        """What `remember` was last given for the flow; empty when nothing was."""
        with self._database.reading() as c:
            text: str | None = c.scalar(sa.text("select memory from flows where name = :n"), {"n": flow})
            return dict(json.loads(text)) if text else {}

    def remember(self, flow: str, generation: int, memory: Mapping[str, Any]) -> None:
        """Keeps what is known of the flow's source: plain data that only the source understands."""
        with self._fenced(flow, generation) as c:
            c.execute(sa.text("update flows set memory = :m where name = :n"), {"m": json.dumps(memory), "n": flow})

    def checkpoint(self, flow: str, destination: str) -> Checkpoint | None:
        """How far a destination has come; None when it has not begun."""
        with self._database.reading() as c:
            row = c.execute(
                sa.text("select position, epoch, part from checkpoints where flow = :f and destination = :d"),
                {"f": flow, "d": destination},
            ).one_or_none()
            return Checkpoint(int(row.position), int(row.epoch), int(row.part)) if row is not None else None

    def begin(self, flow: str, destination: str, position: int, generation: int, epoch: int = 0, part: int = 0) -> Checkpoint:
        """The destination's checkpoint, made at `position` and behind the epoch of that number if there is none."""
        with self._fenced(flow, generation) as c:
            c.execute(
                sa.text(
                    "insert into checkpoints (flow, destination, position, epoch, part, updated_at)"
                    " values (:f, :d, :p, :n, :part, :t)"
                    " on conflict (flow, destination) do nothing"
                ),
                {"f": flow, "d": destination, "p": position, "n": epoch, "part": part, "t": _now()},
            )
        found = self.checkpoint(flow, destination)
        assert found is not None
        return found

    def planned(self, flow: str, destination: str) -> list[Epoch]:
        """The epochs that were planned and not closed, in order; the last may have been handed to lanes ahead of its turn."""
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(
                    f"select {_EPOCH_FIELDS} from epochs"
                    " where flow = :f and destination = :d and state = 'planned' order by number"
                ),
                {"f": flow, "d": destination},
            ).all()
            return [Epoch(**row._mapping) for row in rows]

    def plan(self, epoch: Epoch, changes: int, letters: Sequence[int] = ()) -> None:
        """Records an epoch before any of it runs, with the dead letters that it delivers first."""
        plan = {**epoch.to_data(), "changes": changes, "t": _now()}
        if not letters:
            self._database.write(epoch.flow, epoch.generation, (_PLAN, plan))
            return
        with self._fenced(epoch.flow, epoch.generation) as c:
            _PLAN.quick(c, **plan)
            self.letters.begin_replay(c, epoch, letters)

    def set_aside(
        self,
        epoch: Epoch,
        generation: int,
        found: Sequence[Mapping[str, Any]],
        again: Mapping[int, tuple[str, str]],
        truncated: Mapping[tuple[str, str], tuple[int, int]],
    ) -> None:
        """Records, before the epoch is committed, what it leaves out; it counts when the epoch is closed."""
        with self._fenced(epoch.flow, generation) as c:
            self.letters.set_aside(c, epoch, found, again, truncated)

    def give_back(self, epoch: Epoch, generation: int, code: str, reason: str) -> int:
        """Takes dead letters out of a planned epoch, which then is what it was without them; returns how many."""
        with self._fenced(epoch.flow, generation) as c:
            return self.letters.give_back(c, epoch, code, reason)

    def expire(self, flow: str, destination: str, generation: int, before: int) -> int:
        """Removes dead letters that were set aside before a time (µs since 1970); returns how many."""
        with self._fenced(flow, generation) as c:
            return self.letters.expire(c, flow, destination, before)

    def close_epoch(
        self,
        epoch: Epoch,
        generation: int,
        following: Epoch | None = None,
        changes: int = 0,
        *,
        letters: bool = False,
        side: Mapping[str, Any] | None = None,
    ) -> None:
        """Moves the checkpoint to the epoch's end, and plans the epoch that follows in the same transaction.

        `letters` says that the epoch has set changes aside or has replayed some: that counts from now on. `side` is what it
        has done for a load.
        """
        writes = self._closing(epoch)
        if following is not None:
            writes.append((_PLAN, {**following.to_data(), "changes": changes, "t": _now()}))
        if not letters and side is None:
            self._database.write(epoch.flow, generation, *writes)
            return
        with self._fenced(epoch.flow, generation) as c:
            if letters:
                self.letters.close(c, epoch)
            if side is not None:
                self.loads.close(c, epoch, side)
            for statement, values in writes:
                statement.quick(c, **values)

    def _closing(self, epoch: Epoch) -> list[tuple[Statement, dict[str, Any]]]:
        keys = {"f": epoch.flow, "d": epoch.destination}
        return [
            (_CLOSE, {**keys, "n": epoch.number, "t": _now()}),
            (_MOVE, {**keys, "n": epoch.number, "t": _now(), "p": epoch.upto, "part": epoch.upto_part}),
            (_FORGET, {**keys, "n": epoch.number - HISTORY}),
        ]

    def record_empty(self, epoch: Epoch) -> None:
        """Moves the checkpoint over a stretch of the log that holds nothing, and keeps it as an epoch without changes."""
        plan = {**epoch.to_data(), "changes": 0, "t": _now()}
        self._database.write(epoch.flow, epoch.generation, (_PLAN, plan), *self._closing(epoch))

    def advance(self, flow: str, destination: str, position: int, generation: int) -> None:
        """Moves a checkpoint over a stretch of the log that holds nothing."""
        self._database.write(flow, generation, (_ADVANCE, {"f": flow, "d": destination, "p": position, "t": _now()}))

    def follow(self, flow: str, destination: str, held: Checkpoint, generation: int) -> None:
        """Moves a checkpoint to what the destination itself holds; what is still planned bears used numbers and is forgotten."""
        with self._fenced(flow, generation) as c:
            keys = {"f": flow, "d": destination}
            self.letters.let_go(c, flow, destination)
            c.execute(sa.text("delete from epochs where flow = :f and destination = :d and state = 'planned'"), keys)
            _MOVE.quick(c, **keys, n=held.epoch, t=_now(), p=held.position, part=held.part)

    def rewind(self, flow: str, destination: str, position: int, generation: int) -> None:
        """Moves a checkpoint back; what was planned from the old one is forgotten.

        It takes an epoch number of its own, by which a destination that holds what it has committed is moved back too.
        """
        with self._fenced(flow, generation) as c:
            keys = {"f": flow, "d": destination}
            self.letters.let_go(c, flow, destination)
            # The destination may have committed what was planned: its number is not used again.
            last = c.scalar(sa.text("select max(number) from epochs where flow = :f and destination = :d"), keys)
            c.execute(sa.text("delete from epochs where flow = :f and destination = :d and state = 'planned'"), keys)
            # A quarantined table is passed over from there on.
            missed = "update quarantines set position = :p, part = 0 where flow = :f and destination = :d and position > :p"
            c.execute(sa.text(missed), {**keys, "p": position})
            was = c.execute(sa.text("select position, epoch from checkpoints where flow = :f and destination = :d"), keys).one()
            number = max(int(last or 0), int(was.epoch)) + 1
            source = c.scalar(sa.text("select identity from flows where name = :f"), keys)
            back = Epoch(flow, destination, str(source), number, int(was.position), position, 0, generation)
            _PLAN.quick(c, **back.to_data(), changes=0, t=_now())
            c.execute(
                sa.text("update epochs set state = 'rewound' where flow = :f and destination = :d and number = :n"),
                {**keys, "n": number},
            )
            _MOVE.quick(c, **keys, n=number, t=_now(), p=position, part=0)

    def is_rewound(self, flow: str, destination: str, number: int) -> bool:
        """Whether the number is that of a rewinding, and of no epoch."""
        with self._database.reading() as c:
            sql = "select 1 from epochs where flow = :f and destination = :d and number = :n and state = 'rewound'"
            return c.scalar(sa.text(sql), {"f": flow, "d": destination, "n": number}) is not None

    def _fenced(self, flow: str, generation: int) -> AbstractContextManager[sa.Connection]:
        return self._database.fenced(flow, generation)


def _now() -> int:
    return time.time_ns() // 1000
