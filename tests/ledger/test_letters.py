"""Dead letters in the ledger: durable before the commit, in force with the checkpoint, gone only when delivered or discarded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.core.epoch import Epoch
from penstock.errors import LedgerFenced
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Checkpoint, Ledger


@pytest.fixture
def ledger(address: LedgerAddress) -> Iterator[Ledger]:
    made = Ledger(address)
    generation = made.take_over("shop", "5ec0ffee", "{}")
    made.begin("shop", "warehouse", 0, generation)
    yield made
    made.close()


def epoch(ledger: Ledger, number: int) -> Epoch:
    planned = Epoch("shop", "warehouse", "5ec0ffee", number, number * 10, number * 10 + 10, 1, generation(ledger))
    if planned not in ledger.planned("shop", "warehouse"):
        ledger.plan(planned, 1)
    return planned


def generation(ledger: Ledger) -> int:
    with ledger.letters._database.transaction() as c:
        return int(c.exec_driver_sql("select generation from flows").scalar() or 0)


def letter(position: int, ordinal: int = 1, key: int = 1, code: str = "too_big", **more: Any) -> dict[str, Any]:
    text = f'{{"id":{key}}}'
    about = {"schema": "public", "table": "orders", "key": text, "keys": [text], "op": "insert"}
    return {**about, "position": position, "ordinal": ordinal, "code": code, "reason": "why", "content": b"arrow", **more}


def states(ledger: Ledger) -> dict[int, str]:
    return {x.position: x.state for x in ledger.letters.all("shop", "warehouse")}


def close(ledger: Ledger, one: Epoch) -> None:
    ledger.close_epoch(one, generation(ledger), letters=True)


def test_letters_count_when_their_epoch_is_closed(ledger: Ledger) -> None:
    one = epoch(ledger, 1)
    ledger.set_aside(one, one.generation, [letter(11), letter(12, code="waiting")], {}, {})
    assert states(ledger) == {11: "pending", 12: "pending"}
    assert ledger.letters.ask("shop", [1, 2]) == set() and ledger.letters.discard("shop", [1, 2]) == set()
    close(ledger, one)
    assert states(ledger) == {11: "open", 12: "waiting"}
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(20, 1)
    assert [x.attempts for x in ledger.letters.all("shop")] == [1, 0]


def test_a_reason_may_hold_any_character(ledger: Ledger) -> None:
    one = epoch(ledger, 1)
    ledger.set_aside(one, one.generation, [letter(11, reason="it was \0 and ✓")], {}, {})
    assert ledger.letters.all("shop")[0].reason == "it was \ufffd and ✓"


def test_a_second_try_at_an_epoch_replaces_what_the_first_set_aside(ledger: Ledger) -> None:
    one = epoch(ledger, 1)
    ledger.set_aside(one, one.generation, [letter(11), letter(12)], {}, {})
    ledger.set_aside(one, one.generation, [letter(12), letter(13)], {}, {})
    close(ledger, one)
    assert states(ledger) == {12: "open", 13: "open"}


def test_a_replayed_letter_is_gone_with_its_epoch_or_open_again(ledger: Ledger) -> None:
    one, two = epoch(ledger, 1), Epoch("shop", "warehouse", "5ec0ffee", 2, 20, 30, 1, generation(ledger))
    ledger.set_aside(one, one.generation, [letter(11), letter(12), letter(13)], {}, {})
    close(ledger, one)
    first, second, third = (x.id for x in ledger.letters.all("shop"))
    assert ledger.letters.ask("shop", [first, second, 99]) == {first, second}
    ledger.plan(two, 0, [first, second])
    assert states(ledger) == {11: "replaying", 12: "replaying", 13: "open"}
    assert ledger.letters.replayed_by(two) == [b"arrow", b"arrow"]
    assert ledger.letters.discard("shop", [first, third]) == {third}
    ledger.set_aside(two, two.generation, [], {second: ("too_long", "still")}, {})
    # A second try delivers it again, whatever the first one found.
    assert len(ledger.letters.replayed_by(two)) == 2
    close(ledger, two)
    left = ledger.letters.all("shop")
    assert [(x.id, x.state, x.attempts, x.code, x.reason) for x in left] == [(second, "open", 2, "too_long", "still")]


def test_a_truncate_makes_older_letters_void_and_a_second_try_can_take_it_back(ledger: Ledger) -> None:
    one, two = epoch(ledger, 1), epoch(ledger, 2)
    found = [letter(11), letter(12, table="lines"), letter(25), letter(25, 2, op="delete")]
    ledger.set_aside(one, one.generation, found, {}, {})
    close(ledger, one)
    ledger.set_aside(two, two.generation, [], {}, {("public", "orders"): (25, 2)})
    assert states(ledger) == {11: "truncated", 12: "open", 25: "open"}
    ledger.set_aside(two, two.generation, [], {}, {})
    assert set(states(ledger).values()) == {"open"}
    ledger.set_aside(two, two.generation, [], {}, {("public", "orders"): (25, 2)})
    close(ledger, two)
    assert [(x.position, x.table, x.op) for x in ledger.letters.all("shop")] == [
        (12, "lines", "insert"),
        (25, "orders", "delete"),
    ]


def test_letters_are_given_back_by_an_epoch_that_fails_with_them(ledger: Ledger) -> None:
    one, two = epoch(ledger, 1), Epoch("shop", "warehouse", "5ec0ffee", 2, 20, 30, 1, generation(ledger))
    ledger.set_aside(one, one.generation, [letter(11)], {}, {})
    close(ledger, one)
    ledger.plan(two, 0, [1])
    assert ledger.give_back(two, two.generation, "schema_refused", "no such column") == 1
    assert [(x.state, x.attempts, x.code) for x in ledger.letters.all("shop")] == [("open", 2, "schema_refused")]
    assert ledger.letters.replayed_by(two) == []


def test_a_change_has_one_letter_and_a_number_is_never_given_twice(ledger: Ledger) -> None:
    one, two = epoch(ledger, 1), epoch(ledger, 2)
    ledger.set_aside(one, one.generation, [letter(11)], {}, {})
    close(ledger, one)
    ledger.set_aside(two, two.generation, [letter(11), letter(21)], {}, {})
    close(ledger, two)
    assert sorted(states(ledger)) == [11, 21]
    ledger.letters.discard("shop", [x.id for x in ledger.letters.all("shop")])
    three = epoch(ledger, 3)
    ledger.set_aside(three, three.generation, [letter(31)], {}, {})
    assert ledger.letters.all("shop")[0].id > 2


def test_old_letters_expire(ledger: Ledger) -> None:
    one = epoch(ledger, 1)
    ledger.set_aside(one, one.generation, [letter(11)], {}, {})
    close(ledger, one)
    created = ledger.letters.all("shop")[0].created_at
    assert ledger.expire("shop", "warehouse", one.generation, created) == 0
    assert ledger.expire("shop", "warehouse", one.generation, created + 1) == 1
    assert ledger.letters.all("shop") == []


def test_the_mark_moves_with_every_change(ledger: Ledger) -> None:
    one = epoch(ledger, 1)
    seen = [ledger.letters.mark("shop", "warehouse")]
    ledger.set_aside(one, one.generation, [letter(11), letter(12)], {}, {})
    seen.append(ledger.letters.mark("shop", "warehouse"))
    close(ledger, one)
    for act in (ledger.letters.ask, ledger.letters.discard):
        assert act("shop", [1]) == {1}
        seen.append(ledger.letters.mark("shop", "warehouse"))
    assert len(set(seen)) == 4
    assert ledger.letters.mark("shop", "other") == (0, 0)


def test_an_older_generation_sets_nothing_aside(ledger: Ledger) -> None:
    one = epoch(ledger, 1)
    new = ledger.take_over("shop", "5ec0ffee", "{}")
    for write in (
        lambda: ledger.set_aside(one, one.generation, [letter(11)], {}, {}),
        lambda: ledger.give_back(one, one.generation, "x", "y"),
        lambda: ledger.expire("shop", "warehouse", one.generation, 1 << 60),
    ):
        with pytest.raises(LedgerFenced):
            write()
    ledger.set_aside(one, new, [letter(11)], {}, {})
    assert states(ledger) == {11: "pending"}


def test_a_forgotten_flow_has_no_letters(ledger: Ledger) -> None:
    one = epoch(ledger, 1)
    ledger.set_aside(one, one.generation, [letter(11)], {}, {})
    ledger.forget("shop")
    assert ledger.letters.all("shop") == []


def test_rewinding_undoes_what_planned_epochs_were_about_to_decide(ledger: Ledger) -> None:
    one = epoch(ledger, 1)
    ledger.set_aside(one, one.generation, [letter(11), letter(12, code="waiting")], {}, {})
    close(ledger, one)
    two = Epoch("shop", "warehouse", "5ec0ffee", 2, 20, 30, 1, generation(ledger))
    ledger.plan(two, 1, [1])
    ledger.set_aside(two, two.generation, [letter(21)], {}, {})
    assert states(ledger) == {11: "replaying", 12: "waiting", 21: "pending"}
    ledger.rewind("shop", "warehouse", 15, two.generation)
    assert states(ledger) == {11: "open", 12: "waiting"} and ledger.planned("shop", "warehouse") == []
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(15, 3)
