"""The dead letters of one destination, as its loop sees them: what lanes leave out, what is replayed, what is over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog

from penstock.core.epoch import Epoch
from penstock.core.flow import DeadLetterRules
from penstock.destinations.aside import WHOLE
from penstock.engine.status import DestinationStatus
from penstock.errors import ChangesRefused, DeadLettersFull, DestinationFailed, LedgerError, PenstockError
from penstock.ledger.ledger import Ledger
from penstock.ledger.letters import WAITING, Letter

_log = structlog.get_logger()

LOOK_INTERVAL = 1.0
"""Seconds between looks at what commands have done to the letters; only while there are letters."""
EXPIRY_INTERVAL = 60.0
REPLAY_LETTERS = 1000
REPLAY_BYTES = 32 << 20
"""About how much one epoch replays; the letters of one key always go together."""


class Letters:
    """Used by the destination's own thread; `status` and the ledger tell the others."""

    def __init__(self, ledger: Ledger, flow: str, generation: int, rules: DeadLetterRules, status: DestinationStatus) -> None:
        self._ledger, self._flow, self._generation = ledger, flow, generation
        self._rules, self._status = rules, status
        self._known: list[Letter] = []
        self._mark = (0, 0)
        self._due: list[int] | None = []
        self._looked_at = self._expired_at = 0.0
        self._condemned: dict[int, list[dict[str, Any]]] = {}
        self._said: set[tuple[str, str]] = set()
        self.passes_over: Callable[[str, str], bool] = lambda schema, table: False
        """Whether a table is not delivered to for now, so that its letters rest."""
        self.owes = False
        """Whether letters wait for the next epoch to be delivered with it; for any thread."""

    def load(self) -> None:
        """Reads the letters anew."""
        self._mark = self._ledger.letters.mark(self._flow, self._status.name)
        self._known = self._ledger.letters.all(self._flow, self._status.name)
        self._looked_at = time.monotonic()
        self._due = None
        self._status.letters = sum(letter.state != "pending" for letter in self._known)
        self.owes = bool(self.due())

    def refresh(self) -> None:
        """Sees, once a second while there are letters, what commands have done; removes those that are too old."""
        now = time.monotonic()
        if not self._known or now - self._looked_at < LOOK_INTERVAL:
            return
        self._looked_at = now
        if now - self._expired_at >= EXPIRY_INTERVAL:
            self._expired_at = now
            self._expire()
        if self._ledger.letters.mark(self._flow, self._status.name) != self._mark:
            self.load()

    def due(self) -> list[int]:
        """Letters for the next epoch: those that were asked for, with all of their keys, and those that wait for nothing."""
        if self._due is None:
            self._due = []
            size = 0
            for group in _groups(self._known):
                if self._is_due(group) and len(self._due) < REPLAY_LETTERS and size < REPLAY_BYTES:
                    chosen = [x for x in group if self._rules.later == "wait" or x.state != "open"]
                    self._due += [x.id for x in chosen]
                    size += sum(x.size for x in chosen)
        return self._due

    def _is_due(self, group: Sequence[Letter]) -> bool:
        if self.passes_over(group[0].schema, group[0].table):
            return False
        states = {letter.state for letter in group}
        return "replay" in states or (WAITING in states and "open" not in states)

    def descriptor(self, epoch: Epoch) -> dict[str, Any]:
        """What the epoch's lanes must know of letters; empty when nothing is to be set aside or held back."""
        if not self._rules.enabled and not self._known:
            return {}
        parked: dict[tuple[str, str], dict[str, None]] = {}
        for letter in self._known:
            if _holds_back(letter, epoch):
                keys = letter.keys if self._rules.later == "wait" else ()
                parked.setdefault((letter.schema, letter.table), {}).update(dict.fromkeys(keys))
        replayed = any(x.epoch == epoch.number and x.state in ("replaying", "refused") for x in self._known)
        return {
            "aside": {
                "parked": [[*name, list(keys)] for name, keys in parked.items()],
                "refused": self._condemned.get(epoch.number, []),
                "letters": self._ledger.letters.replayed_by(epoch) if replayed else [],
                "room": max(0, self._rules.max_open - self._count(epoch)),
            }
        }

    def take(self, epoch: Epoch, receipts: Sequence[dict[str, Any]]) -> None:
        """Makes durable what the lanes have left out of an epoch; before its commit, so that nothing is passed silently."""
        found = [letter for receipt in receipts for letter in receipt.pop("letters", ())]
        truncated: dict[tuple[str, str], tuple[int, int]] = {}
        for schema, table, position, ordinal in [t for receipt in receipts for t in receipt.pop("truncated", ())]:
            truncated[schema, table] = max(truncated.get((schema, table), (0, 0)), (position, ordinal))
        if not found and not truncated and not self.concerns(epoch):
            return
        mine = {x.identity: x.id for x in self._known if x.epoch == epoch.number and x.state in ("replaying", "refused")}
        # What was set aside before a TRUNCATE of the same epoch is void at once.
        kept = [x for x in found if (x["position"], x["ordinal"]) > truncated.get((x["schema"], x["table"]), (0, 0))]
        self._count_up("dead_letters_truncated", len(found) - len(kept))
        identities = [(x["schema"], x["table"], x["position"], x["ordinal"], x["op"]) for x in kept]
        again = {mine[i]: (x["code"], x["reason"]) for i, x in zip(identities, kept, strict=True) if i in mine}
        new = [x for i, x in zip(identities, kept, strict=True) if i not in mine]
        if self._count(epoch) + len(new) + len(again) > self._rules.max_open:
            raise DeadLettersFull(f"{self._status.name} would have more than {self._rules.max_open} dead letters (max_open)")
        self._ledger.set_aside(epoch, self._generation, new, again, truncated)
        self.load()

    def _count(self, epoch: Epoch) -> int:
        """Letters that stay whatever the epoch decides."""
        return sum(x.epoch != epoch.number for x in self._known)

    def concerns(self, epoch: Epoch) -> bool:
        """Whether the epoch decides on letters."""
        return any(letter.epoch == epoch.number for letter in self._known)

    def closed(self, epoch: Epoch) -> None:
        """The epoch is closed, and what it decided holds: counts it, and says it once per table."""
        self._condemned.pop(epoch.number, None)
        mine = [letter for letter in self._known if letter.epoch == epoch.number]
        if not mine:
            return
        names = {"replaying": "dead_letters_replayed", "truncated": "dead_letters_truncated"}
        for letter in mine:
            waits = "dead_letters_waiting" if letter.code == WAITING else "dead_letters"
            self._count_up(names.get(letter.state, waits), 1)
        self._say(mine)
        self.load()

    def condemn(self, epoch: Epoch, refusal: ChangesRefused) -> None:
        """Notes what a commit has refused, so that the epoch's next try leaves it out."""
        known = self._condemned.setdefault(epoch.number, [])
        new = [r for r in refusal.refusals if r not in known]
        if not new:
            raise DestinationFailed(f"{self._status.name} refuses changes that are not in the epoch any more") from refusal
        known += new

    def give_back(self, error: PenstockError) -> bool:
        """After an error that would end the destination: takes replayed letters out of the epochs that have some."""
        numbers = {x.epoch for x in self._known if x.state in ("replaying", "refused")}
        if not numbers or isinstance(error, LedgerError):
            return False
        planned = [e for e in self._ledger.planned(self._flow, self._status.name) if e.number in numbers]
        count = sum(self._ledger.give_back(epoch, self._generation, error.code, error.message) for epoch in planned)
        if count:
            self._status.attempts = 0
            _log.warning(
                "dead letters could not be replayed, the destination goes on without them",
                destination=self._status.name,
                count=count,
                code=error.code,
                reason=error.message,
            )
        return count > 0

    def _expire(self) -> None:
        before = time.time_ns() // 1000 - int(self._rules.max_age * 1e6)
        count = self._ledger.expire(self._flow, self._status.name, self._generation, before)
        if count:
            self._count_up("dead_letters_expired", count)
            _log.warning(
                "dead letters removed: they are older than max_age", destination=self._status.name, count=count, code="expired"
            )

    def _say(self, letters: Sequence[Letter]) -> None:
        tables = Counter((letter.qualified, letter.state, letter.code) for letter in letters)
        for (table, state, code), count in tables.items():
            facts = {"destination": self._status.name, "table": table, "count": count}
            if state == "replaying":
                _log.info("dead letters replayed", **facts)
            elif state == "truncated":
                _log.warning("dead letters removed: their table was truncated at the source", **facts)
            elif (table, code) not in self._said:
                self._said.add((table, code))
                reason = next(x.reason for x in letters if x.qualified == table and x.code == code)
                remedy = "`penstock dead-letter list` shows them; further ones are counted only."
                _log.warning("changes set aside", **facts, code=code, reason=reason, remedy=remedy)

    def _count_up(self, name: str, count: int) -> None:
        if count:
            self._status.counts[name] = self._status.counts.get(name, 0) + count


def _holds_back(letter: Letter, epoch: Epoch) -> bool:
    """Whether changes of the letter's keys wait in the epoch; what an earlier try at the epoch decided is decided anew."""
    if letter.epoch is None:
        return True
    return letter.state == "truncated" if letter.epoch == epoch.number else letter.state in ("pending", "refused")


def _groups(letters: Iterable[Letter]) -> list[list[Letter]]:
    """Letters that share keys, directly or through others, each group in log order; without those that an epoch decides on."""
    leaders: dict[Any, Any] = {}

    def leader(key: Any) -> Any:
        while leaders.setdefault(key, key) != key:
            leaders[key] = key = leaders[leaders[key]]
        return key

    resting = [letter for letter in letters if letter.epoch is None]
    # A TRUNCATE that is set aside touches every key of its table.
    whole = {(x.schema, x.table) for x in resting if WHOLE in x.keys}
    names: dict[int, list[Any]] = {}
    for x in resting:
        more = [WHOLE] if (x.schema, x.table) in whole else []
        names[x.id] = [(x.schema, x.table, key) for key in (*x.keys, *more)] or [x.id]
    for keys in names.values():
        for key in keys[1:]:
            leaders[leader(key)] = leader(keys[0])
    groups: dict[Any, list[Letter]] = {}
    for letter in sorted(resting, key=lambda x: (x.position, x.ordinal, x.id)):
        groups.setdefault(leader(names[letter.id][0]), []).append(letter)
    return list(groups.values())
