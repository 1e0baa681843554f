"""The service of dead letters: listed page by page, shown, asked for again, discarded."""

from __future__ import annotations

from typing import Any

from penstock.control.answers import LetterAnswer, LetterPage, LettersDone, LetterWhole
from penstock.control.caller import Caller
from penstock.control.flows import moment
from penstock.control.letters import Chosen, LetterDesk, describe
from penstock.control.premises import Premises
from penstock.control.requests import LetterChoice
from penstock.errors import FlowUnknown, LetterMissing, RequestRefused
from penstock.ledger.letters import Letter

MOST = 500


class Letters:
    """The letters of every flow of a ledger."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def page(
        self,
        caller: Caller,
        flow: str,
        *,
        destination: str | None = None,
        table: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> LetterPage:
        """The first letters after a number that fit; without their keys for who may only look."""
        caller.require("viewer")
        limit = max(1, min(limit, MOST))
        desk = self._desk(flow)
        found = sorted(desk.find(Chosen((), destination, table)), key=lambda letter: letter.id) if desk is not None else []
        rest = [letter for letter in found if letter.id > after]
        following = rest[limit - 1].id if len(rest) > limit else None
        # A key is data too: a mail address, an account's number.
        hidden = {} if caller.may("operator") else {"key": None}
        return LetterPage(letters=[LetterAnswer.model_validate({**_data(x), **hidden}) for x in rest[:limit]], next=following)

    def find(self, caller: Caller, flow: str, number: int) -> LetterWhole:
        """A letter with its change, values included. LetterMissing."""
        # The change is a row of the source: who may only look at flows need not see the data that they move.
        caller.require("operator")
        desk = self._desk(flow, needed=True)
        letter = desk.find(Chosen((number,)))[0]
        change = desk.change(letter)
        whole = {"change": change.get("change"), "unrepresentable": change.get("unrepresentable", {})}
        return LetterWhole.model_validate({**_data(letter), **whole})

    def replay(self, caller: Caller, flow: str, choice: LetterChoice) -> LettersDone:
        """Has letters delivered again with the worker's next epoch. LetterMissing."""
        with self._premises.door(caller, "letters.replay", flow, "operator") as detail:
            chosen, desk = _chosen(choice), self._desk(flow, needed=True)
            found = desk.find(chosen)
            done = [letter.id for letter in desk.replay(found)]
            detail.text = f"letters {', '.join(map(str, done))}" if done else None
        return _answer(found, done)

    def discard(self, caller: Caller, flow: str, choice: LetterChoice) -> LettersDone:
        """Removes letters for good. LetterMissing."""
        with self._premises.door(caller, "letters.discard", flow, "operator") as detail:
            chosen, desk = _chosen(choice), self._desk(flow, needed=True)
            found = desk.find(chosen)
            done = [letter.id for letter in desk.discard(found)]
            detail.text = f"letters {', '.join(map(str, done))}" if done else None
        return _answer(found, done)

    def _desk(self, flow: str, *, needed: bool = False) -> Any:
        """The flow's letters; None when it has never run, LetterMissing when they are `needed`. FlowUnknown."""
        ledger = self._premises.ledger
        if ledger.register.find(flow) is None:
            raise FlowUnknown(f"there is no flow named {flow}", flow=flow)
        if ledger.identity(flow) is None:
            if needed:
                raise LetterMissing(f"flow {flow} has no dead letters: it has never run", flow=flow)
            return None
        return LetterDesk(flow, self._premises.state, ledger)


def _chosen(choice: LetterChoice) -> Chosen:
    if not choice.ids and choice.destination is None and choice.table is None and not choice.all:
        raise RequestRefused("no letter is named", remedy="Name letters by ids, destination or table, or say all.")
    return Chosen(tuple(choice.ids), choice.destination, choice.table)


def _answer(found: list[Letter], done: list[int]) -> LettersDone:
    return LettersDone(done=done, left=[letter.id for letter in found if letter.id not in done])


def _data(letter: Letter) -> dict[str, Any]:
    data = describe(letter)
    key = data["key"]
    changed = {"table_schema": data.pop("schema"), "set_aside_at": moment(letter.created_at)}
    return {**data, **changed, "key": key if isinstance(key, dict) or key is None else {"": key}}
