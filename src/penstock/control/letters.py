"""The dead letters of a flow, for people: found, shown, marked for replay, discarded; whether or not a worker runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from penstock.core.options import matches
from penstock.core.packing import unpack
from penstock.core.position import format_lsn
from penstock.engine.places import ledger_address
from penstock.errors import LetterMissing, remedy_of
from penstock.ledger.ledger import Ledger
from penstock.ledger.letters import WAITING, Letter

_WORDS = {"replay": "asked for", "refused": "replaying", "truncated": "being removed", "pending": "being set aside"}


@dataclass(frozen=True)
class Chosen:
    """Which letters: by number, or all, of one destination, of tables that fit a pattern."""

    ids: Sequence[int] = ()
    destination: str | None = None
    table: str | None = None

    def takes(self, letter: Letter) -> bool:
        """Whether the letter is one of them."""
        if self.ids and letter.id not in self.ids:
            return False
        if self.destination is not None and letter.destination != self.destination:
            return False
        return self.table is None or matches((self.table,), letter.schema, letter.table)


class LetterDesk:
    """One flow's letters in the ledger of a state directory; LetterMissing when no worker has run the flow."""

    def __init__(self, flow: str, state: Path, opened: Ledger | None = None) -> None:
        """A ledger that is `opened` already is its owner's to close."""
        path = ledger_address(state)
        self._flow = flow
        self._owned = opened is None
        self._ledger = opened or (Ledger(path) if path.exists() else None)
        identity = self._ledger.identity(flow) if self._ledger is not None else None
        if identity is None:
            self.close()
            raise LetterMissing(
                f"the ledger {path} knows no flow named {flow}",
                remedy="Check the flow's name; --state or PENSTOCK_DATABASE_URL names the ledger that its worker uses.",
            )
        self._identity = identity

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back the ledger."""
        if self._ledger is not None and self._owned:
            self._ledger.close()

    def find(self, chosen: Chosen) -> list[Letter]:
        """The letters that are chosen, in log order; LetterMissing when one that is named by number is not there."""
        assert self._ledger is not None
        found = [letter for letter in self._ledger.letters.all(self._flow) if letter.state != "pending" and chosen.takes(letter)]
        missing = sorted(set(chosen.ids) - {letter.id for letter in found})
        if missing:
            raise LetterMissing(f"flow {self._flow} has no dead letter {', '.join(map(str, missing))}", flow=self._flow)
        return found

    def replay(self, letters: Sequence[Letter]) -> list[Letter]:
        """Marks letters, so that the worker delivers them with its next epoch; returns those that it does not have already."""
        assert self._ledger is not None
        done = self._ledger.letters.ask(self._flow, [letter.id for letter in letters])
        return [letter for letter in letters if letter.id in done]

    def discard(self, letters: Sequence[Letter]) -> list[Letter]:
        """Removes letters for good; returns those that are gone: not the ones which are being delivered now."""
        assert self._ledger is not None
        done = self._ledger.letters.discard(self._flow, [letter.id for letter in letters])
        return [letter for letter in letters if letter.id in done]

    def change(self, letter: Letter) -> dict[str, Any]:
        """The change as the json format has it, and by column what its type cannot hold; empty when it is gone meanwhile."""
        from penstock.formats.json.format import lines
        from penstock.formats.layout import without_leaves

        assert self._ledger is not None
        content = self._ledger.letters.content(letter.id)
        if content is None:
            return {}
        batch = unpack(content)
        shown = lines(without_leaves(batch), self._identity, "").to_pylist()
        odd = {column: strange.texts.to_pylist()[-1] for column, strange in (*batch.before_odd.items(), *batch.odd.items())}
        return {"change": json.loads(shown[-1]) if shown else None, "unrepresentable": odd}


def describe(letter: Letter) -> dict[str, Any]:
    """A letter as plain data."""
    return {
        "id": letter.id,
        "destination": letter.destination,
        "schema": letter.schema,
        "table": letter.table,
        "key": json.loads(letter.key) if letter.key else None,
        "op": letter.op,
        "position": format_lsn(letter.position),
        "ordinal": letter.ordinal,
        "state": _WORDS.get(letter.state, letter.state),
        "code": letter.code,
        "reason": letter.reason,
        "remedy": remedy(letter),
        "attempts": letter.attempts,
        "set_aside_at": letter.created_at / 1e6,
    }


def remedy(letter: Letter) -> str:
    """What an operator can do about it."""
    if letter.code == WAITING:
        return "It is delivered by itself when the letters of its key that stand before it are replayed or discarded."
    mend = remedy_of(letter.code)
    return f"{mend} Then `penstock dead-letter replay --id {letter.id}`, or `discard` it."
