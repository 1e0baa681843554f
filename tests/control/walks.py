"""Random walks over the lifecycle: several clients give commands while workers are killed, and everything that was said is kept.

What must hold is checked against the flow's own history, with the rules written down here a second time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.client import Client
from penstock.control.answers import CommandAnswer, EventAnswer
from penstock.control.caller import Caller
from penstock.control.lifecycle import Command, worker_of
from penstock.control.service import Service
from penstock.errors import TransitionRefused

ANN = Caller("ann", "admin")
COMMANDS: tuple[Command, ...] = ("start", "pause", "resume", "stop", "run")
RULES: dict[str, tuple[str, tuple[str, ...]]] = {
    "start": ("running", ("running", "stopped")),
    "pause": ("paused", ("running", "paused")),
    "resume": ("running", ("running", "paused")),
    "stop": ("stopped", ("running", "paused", "stopped", "once")),
    "run": ("once", ("stopped", "once")),
}
"""What each command makes the wish, and from which wishes it may."""
STATES = {"created", "starting", "running", "paused", "stopped", "failed", "silent", "gone"}
SOON = 0.05
"""By how much clocks of one machine may seem to differ."""


@dataclass(frozen=True)
class Said:
    """A command, and what was answered."""

    command: Command
    flow: str
    why: str
    began: float
    ended: float
    answer: CommandAnswer | TransitionRefused


@dataclass
class Walk:
    """One walk: what was asked, what happened, what was seen."""

    service: Service
    flows: Sequence[str]
    seed: int
    said: list[Said] = field(default_factory=list)
    events: list[EventAnswer] = field(default_factory=list)
    states: set[str] = field(default_factory=set)
    kills: int = 0
    trouble: list[BaseException] = field(default_factory=list)

    def run(self, connect: Sequence[Callable[[], Client]], seconds: float, kill_every: float) -> None:
        """Walks for so long, or until it has been somewhere, with a thread for each client, one that kills and one that looks."""
        ends = time.monotonic() + seconds
        dice = [random.Random(self.seed + number) for number in range(len(connect) + 1)]
        bodies: list[Callable[[], None]] = [
            *(partial(self._command, one, made, ends) for one, made in zip(dice[1:], connect, strict=True)),
            partial(self._kill, dice[0], ends, kill_every),
            partial(self._look, ends),
        ]
        threads = [threading.Thread(target=self._guarded, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.trouble:
            raise self.trouble[0]

    def _is_over(self, ends: float) -> bool:
        """On a busy machine little happens in a while; then it takes a minute longer."""
        late = time.monotonic() - ends
        return late > 60 or (late > 0 and self.kills > 1 and len(self.said) > 20)

    def settle(self) -> None:
        """Everything is stopped in the end, and what was not read of the history is."""
        for flow in self.flows:
            done = self.service.commands.give(ANN, "stop", flow, why="the end", patience=60)
            assert done.settled and done.worker is None, done
        self._read()

    def check(self) -> None:
        """Every rule, against everything that was seen."""
        assert self.states <= STATES, self.states
        for flow in self.flows:
            history = [event for event in self.events if event.flow == flow]
            self._check_wishes(flow, history)
            made = [event.generation for event in history if event.generation is not None]
            assert made == sorted(made), f"{flow}: a worker wrote after its successor: {made}"

    def _check_wishes(self, flow: str, history: list[EventAnswer]) -> None:
        timeline: list[tuple[float, str]] = [(0.0, "stopped")]
        asked: dict[str, int] = {}
        for event in history:
            command, _, rest = event.event.partition(" ")
            if rest != "asked for" or command not in RULES:
                continue
            wanted, allowed = RULES[command]
            assert timeline[-1][1] in allowed, f"{flow}: {command} was accepted while {timeline[-1][1]}"
            timeline.append((event.at.timestamp(), wanted))
            asked[event.why or ""] = asked.get(event.why or "", 0) + 1
        for said in (one for one in self.said if one.flow == flow):
            wanted, allowed = RULES[said.command]
            meanwhile = _in_effect(timeline, said.began - SOON, said.ended + SOON)
            if isinstance(said.answer, TransitionRefused):
                assert said.why not in asked and meanwhile - set(allowed), f"{said} was refused, and might have been done"
            elif said.answer.changed:
                assert asked.get(said.why) == 1 and said.answer.wished == wanted, f"{said} is not in the history once"
            else:
                assert said.why not in asked and wanted in meanwhile, f"{said} changed something, or should have"
            if isinstance(said.answer, CommandAnswer) and said.answer.settled and said.command == "stop":
                assert said.answer.worker is None, f"{said}: settled, and somebody runs it"

    def _command(self, dice: random.Random, connect: Callable[[], Client], ends: float) -> None:
        with connect() as plane:
            while not self._is_over(ends):
                command, flow = dice.choices(COMMANDS, (4, 2, 3, 2, 1))[0], dice.choice(self.flows)
                why, wait = f"{threading.get_ident()}-{len(self.said)}-{dice.random()}", dice.choice((0.0, 0.0, 0.5, 1.5))
                began = time.time()
                answer: CommandAnswer | TransitionRefused
                try:
                    answer = plane.command(command, flow, why=why, wait=wait)
                except TransitionRefused as error:
                    answer = error
                self.said.append(Said(command, flow, why, began, time.time(), answer))
                time.sleep(dice.random() * 0.3)

    def _kill(self, dice: random.Random, ends: float, every: float) -> None:
        while not self._is_over(ends):
            time.sleep(every * (0.5 + dice.random()))
            lease = worker_of(self.service.premises.leases, dice.choice(self.flows))
            if lease is not None and lease.holder.pid != os.getpid():
                try:
                    os.kill(lease.holder.pid, signal.SIGKILL)
                    self.kills += 1
                except ProcessLookupError:
                    continue

    def _look(self, ends: float) -> None:
        while not self._is_over(ends):
            self._read()
            self.states.update(flow.state for flow in self.service.flows.page(ANN).flows)
            time.sleep(0.2)

    def _read(self) -> None:
        """What happened since the last look; only the newest events of a flow are kept."""
        while found := self.service.events(ANN, after=self.events[-1].id if self.events else 0, limit=500).events:
            self.events += found

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self.trouble.append(error)


def _in_effect(timeline: list[tuple[float, str]], began: float, ended: float) -> set[str]:
    """Every wish that was in effect at some moment between the two."""
    before = [wish for at, wish in timeline if at <= began][-1]
    return {before, *(wish for at, wish in timeline if began <= at <= ended)}
