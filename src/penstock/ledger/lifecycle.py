"""The life of a flow: what operators want of it, and every transition with who, when and why.

The wish and the state are two things: a command changes the wish, the worker that holds the lease follows it and records the
state. A wish outlives workers: one that starts for a paused flow is paused from its beginning.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Literal, cast

import sqlalchemy as sa

from penstock.errors import FlowUnknown, TransitionRefused
from penstock.ledger.database import LedgerDatabase
from penstock.ledger.flows import Flows, KnownFlow
from penstock.ledger.statement import Statement, plain

State = Literal["running", "paused", "stopped", "once"]
"""What may be wanted; `once` is to run until nothing is left, and then to be stopped."""

HISTORY = 200
"""How many events of a flow are kept."""

_NEWEST = Statement(
    "select id, at, event, who, why, generation, answers from flow_events where flow = :f and id > :a order by id desc limit :n"
)
_STEPS = Statement("select flow, state, who, why, at, reloads from wishes where who like :w")
_TURN = Statement("select {turn}")
_WISH = Statement("select state, who, why, at, reloads from wishes where flow = :f")

_COMMANDS: dict[str, tuple[State, tuple[State, ...], str]] = {
    "pause": ("paused", ("running", "paused"), "`penstock flow start` lets it run again; then it can be paused."),
    "resume": ("running", ("running", "paused"), "It was stopped, not paused: `penstock flow start` lets it run again."),
    "stop": ("stopped", ("running", "paused", "stopped", "once"), ""),
    "start": ("running", ("running", "stopped"), "It is paused, not stopped: `penstock flow resume` lets it go on."),
    "run": ("once", ("stopped", "once"), "It is not stopped: `penstock flow stop` ends it; then it can be run once."),
}
"""What each command asks for, from which wishes it may, and what to do else."""
_STEP = re.compile(r" \(reconfiguring, then (running|paused|once)\)$")
"""How the one ends who is named by a wish that is not to last. No token's name and no user's has such an end."""
_PAST = {"pause": "paused", "resume": "resumed", "stop": "stopped", "start": "started", "run": "run once"}


@dataclass(frozen=True)
class Wish:
    """What is wanted of a flow; running when nobody has said anything."""

    state: State = "running"
    who: str = ""
    why: str | None = None
    at: int = 0
    reloads: int = 0
    """How often its definition was asked to be read again."""

    @property
    def then(self) -> State | None:
        """What follows by itself, when this is a step of a reconfiguration; None when it is meant to last."""
        found = _STEP.search(self.who)
        return cast(State, found[1]) if found else None


@dataclass(frozen=True)
class Event:
    """Something that happened to a flow."""

    id: int
    at: int
    event: str
    who: str
    why: str | None
    generation: int | None
    answers: int | None = None
    """The number of the question that it answers; a reload answers every one up to that."""


class Lifecycle:
    """Wishes and events."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def wish(self, flow: str) -> Wish:
        """What is wanted of the flow now; a read that nobody waits for."""
        rows = self._database.ask(_WISH, f=flow)
        return Wish(**rows[0]) if rows else Wish()

    def ask(self, command: str, flow: str, who: str, why: str | None = None, *, known: bool = False) -> tuple[Wish, bool]:
        """Records what a command wants of the flow; the wish, and whether it is a new one. TransitionRefused, FlowUnknown.

        `known` says that the flow exists although no worker has run it yet.
        """
        state, allowed, remedy = _COMMANDS[command]
        with self._database.transaction(flow) as c:
            if not known and not _is_known(c, flow):
                raise FlowUnknown(f"there is no flow named {flow} in {self._database.address}", flow=flow)
            before = read_wish(c, flow)
            # A step is on its way to what counts; who asks for something meanwhile has the last word, also for the same.
            now = before.then or before.state
            if now not in allowed:
                raise TransitionRefused(f"flow {flow} is {now}: it cannot be {_PAST[command]}", remedy=remedy, flow=flow)
            if state != "stopped":
                refuse_deleted(c, flow)
            if before.state == state and before.then is None and not (command in ("start", "run") and _has_failed(c, flow)):
                return before, False
            wish = Wish(state, who, why, _now(), before.reloads)
            keep_wish(c, flow, wish)
            note_event(c, flow, f"{command} asked for", who, why, None)
            return wish, True

    def step(
        self, command: str, flow: str, who: str, why: str | None, *, after: Wish, then: State | None = None, by: str | None = None
    ) -> Wish | None:
        """Another wish in the place of `after`; None, and nothing, when somebody has wished something else since.

        With `then` it is one step of several: whoever finds it left over goes on to that. The event names `by`, if not `who`.
        """
        with self._database.transaction(flow) as c:
            before = read_wish(c, flow)
            if (before.state, before.who, before.at) != (after.state, after.who, after.at):
                return None
            named = f"{who} (reconfiguring, then {then})" if then is not None else who
            wish = Wish(_COMMANDS[command][0], named, why, _now(), before.reloads)
            keep_wish(c, flow, wish)
            note_event(c, flow, f"{command} asked for", by or who, why, None)
            return wish

    def go_on(self, flow: str, left: Wish, by: str) -> Wish | None:
        """Takes the step that follows one which was left over; None when somebody has wished something else since."""
        command = "pause" if left.then == "paused" else "run" if left.then == "once" else "start"
        command = "resume" if (left.state, left.then) == ("paused", "running") else command
        who, why = _STEP.sub("", left.who), "a reconfiguration was cut short"
        return self.step(command, flow, who, why, after=left, by=by)

    def steps(self) -> list[tuple[str, Wish]]:
        """Every flow whose wish is a step of a reconfiguration."""
        with self._database.reading() as c:
            rows = _STEPS.run(c, w="%(reconfiguring, then %").all()
        found = [(str(row.flow), Wish(row.state, row.who, row.why, row.at, row.reloads)) for row in rows]
        return [(flow, wish) for flow, wish in found if wish.then is not None]

    def ask_reload(self, flow: str, who: str) -> tuple[int, int]:
        """Asks for the flow's definition to be read again; the newest event before the answer, and the question's number."""
        with self._database.transaction(flow) as c:
            if not _is_known(c, flow):
                raise FlowUnknown(f"there is no flow named {flow} in {self._database.address}", flow=flow)
            before = read_wish(c, flow)
            keep_wish(c, flow, Wish(before.state, before.who, before.why, before.at, before.reloads + 1))
            note_event(c, flow, "reload asked for", who, None, None)
            newest = c.scalar(sa.text("select max(id) from flow_events where flow = :f"), {"f": flow})
            return int(newest or 0), before.reloads + 1

    def note(self, flow: str, event: str, who: str, why: str | None) -> int:
        """Records that an operator wants something which is no state; the event's number, after which the answer comes."""
        with self._database.transaction(flow) as c:
            if not _is_known(c, flow):
                raise FlowUnknown(f"there is no flow named {flow} in {self._database.address}", flow=flow)
            note_event(c, flow, event, who, why, None)
            return int(c.scalar(sa.text("select max(id) from flow_events where flow = :f"), {"f": flow}) or 0)

    def record(
        self,
        flow: str,
        generation: int,
        event: str,
        why: str | None,
        who: str,
        state: str | None = None,
        answers: int | None = None,
    ) -> bool:
        """What a worker has done, and the flow's state from then on; false, and nothing, when another has taken over."""
        with self._database.transaction(flow) as c:
            if c.scalar(sa.text("select generation from flows where name = :f"), {"f": flow}) != generation:
                return False
            if state is not None:
                c.execute(
                    sa.text("update flows set state = :s, reason = :r, updated_at = :t where name = :f"),
                    {"s": state, "r": plain(why) if why is not None else None, "t": _now(), "f": flow},
                )
            note_event(c, flow, event, who, why, generation, answers)
            return True

    def events(self, flow: str, limit: int = 10, after: int = 0) -> list[Event]:
        """The newest events after that one, the newest last."""
        return [Event(**row) for row in reversed(self._database.ask(_NEWEST, f=flow, a=after, n=limit))]

    def after(self, last: int, limit: int, flow: str | None = None) -> list[tuple[str, Event]]:
        """The first events after that one, of one flow or of all, the newest last."""
        only = " and flow = :f" if flow is not None else ""
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(
                    "select flow, id, at, event, who, why, generation, answers"
                    f" from flow_events where id > :a{only} order by id limit :n"
                ),
                {"a": last, "n": limit, **({"f": flow} if flow is not None else {})},
            ).all()
            return [(str(row.flow), Event(**{k: v for k, v in row._mapping.items() if k != "flow"})) for row in rows]

    def newest(self) -> int:
        """The number of the newest event of any flow; 0 when there is none."""
        with self._database.reading() as c:
            return int(c.scalar(sa.text("select max(id) from flow_events")) or 0)

    def flows(self) -> list[KnownFlow]:
        """Every flow that was created here or that a worker has run."""
        return list(Flows(self._database).all())

    def flow(self, name: str) -> KnownFlow | None:
        """One of them."""
        return Flows(self._database).find(name)


def refuse_deleted(c: sa.Connection, flow: str) -> None:
    """TransitionRefused when somebody deletes the flow, as part of somebody's transaction: what it had may be gone already."""
    who = c.scalar(sa.text("select deleting from flows where name = :f"), {"f": flow})
    if who is not None:
        raise TransitionRefused(
            f"flow {flow} is being deleted by {who}",
            remedy="`penstock flow delete` finishes that, also one that was cut short; then the flow can be created anew.",
            flow=flow,
        )


def _has_failed(c: sa.Connection, flow: str) -> bool:
    return bool(c.scalar(sa.text("select state from flows where name = :f"), {"f": flow}) == "failed")


def read_wish(c: sa.Connection, flow: str) -> Wish:
    """What is wanted of the flow, as part of somebody's transaction."""
    row = _WISH.run(c, f=flow).one_or_none()
    return Wish(**row._mapping) if row is not None else Wish()


def keep_wish(c: sa.Connection, flow: str, wish: Wish) -> None:
    """Keeps what is wanted of the flow, as part of somebody's transaction."""
    c.execute(
        sa.text(
            "insert into wishes (flow, state, who, why, at, reloads) values (:f, :state, :who, :why, :at, :reloads)"
            " on conflict (flow) do update set state = excluded.state, who = excluded.who, why = excluded.why,"
            " at = excluded.at, reloads = excluded.reloads"
        ),
        {"f": flow, **vars(wish)},
    )


def note_event(
    c: sa.Connection, flow: str, event: str, who: str, why: str | None, generation: int | None, answers: int | None = None
) -> None:
    """Keeps an event, as part of somebody's transaction; events of all flows are seen in the order of their numbers."""
    # A number is given with the row and seen with the commit: who has seen 12 asks for what comes after, and never for 11.
    _TURN.run(c)
    why = plain(why) if why is not None else None
    c.execute(
        sa.text("insert into flow_events (flow, at, event, who, why, generation, answers) values (:f, :t, :e, :w, :y, :g, :n)"),
        {"f": flow, "t": _now(), "e": event, "w": who, "y": why, "g": generation, "n": answers},
    )
    c.execute(
        sa.text(
            "delete from flow_events where flow = :f and id <= (select id from flow_events where flow = :f"
            " order by id desc limit 1 offset :n)"
        ),
        {"f": flow, "n": HISTORY},
    )


def _is_known(c: sa.Connection, flow: str) -> bool:
    found = "select 1 from flows where name = :f union all select 1 from leases where flow = :f limit 1"
    return c.scalar(sa.text(found), {"f": flow}) is not None


def _now() -> int:
    return time.time_ns() // 1000
