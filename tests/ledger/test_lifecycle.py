"""The life of a flow in the ledger: wishes are checked and recorded, and only the holder of the flow records its state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.errors import FlowUnknown, TransitionRefused
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Ledger
from penstock.ledger.lifecycle import HISTORY


@pytest.fixture
def ledger(address: LedgerAddress) -> Iterator[Ledger]:
    made = Ledger(address)
    made.take_over("shop", "5ec0ffee", '{"name": "shop"}')
    yield made
    made.close()


def events(ledger: Ledger) -> list[tuple[str, str, str | None]]:
    return [(e.event, e.who, e.why) for e in ledger.lifecycle.events("shop")]


def test_every_wish_is_kept_with_who_and_why_and_said_twice_is_one(ledger: Ledger) -> None:
    life = ledger.lifecycle
    assert life.wish("shop").state == "running"
    assert life.ask("pause", "shop", "ann", "the warehouse moves")[1]
    assert not life.ask("pause", "shop", "bob")[1]
    wish = life.wish("shop")
    assert (wish.state, wish.who, wish.why) == ("paused", "ann", "the warehouse moves")
    assert life.ask("resume", "shop", "bob")[1] and life.ask("stop", "shop", "bob")[1] and life.ask("start", "shop", "ann")[1]
    assert events(ledger) == [
        ("pause asked for", "ann", "the warehouse moves"),
        ("resume asked for", "bob", None),
        ("stop asked for", "bob", None),
        ("start asked for", "ann", None),
    ]


@pytest.mark.parametrize(
    ("before", "refused"), [("stop", "pause"), ("stop", "resume"), ("pause", "start")], ids=lambda word: str(word)
)
def test_what_does_not_follow_is_refused_with_what_does(ledger: Ledger, before: str, refused: str) -> None:
    ledger.lifecycle.ask(before, "shop", "ann")
    with pytest.raises(TransitionRefused) as error:
        ledger.lifecycle.ask(refused, "shop", "ann")
    assert "penstock flow" in error.value.remedy and len(events(ledger)) == 1


def test_a_flow_that_nobody_knows_is_refused_unless_its_file_is_there(ledger: Ledger) -> None:
    with pytest.raises(FlowUnknown):
        ledger.lifecycle.ask("pause", "other", "ann")
    assert ledger.lifecycle.ask("pause", "other", "ann", known=True)[0].state == "paused"


def test_only_the_newest_generation_records_what_happened(ledger: Ledger) -> None:
    old = ledger.take_over("shop", "5ec0ffee", "{}")
    new = ledger.take_over("shop", "5ec0ffee", "{}")
    assert not ledger.lifecycle.record("shop", old, "paused", None, "worker", "paused")
    assert ledger.lifecycle.record("shop", new, "failed", "disk_full: no", "worker", "failed")
    found = ledger.lifecycle.flow("shop")
    assert found is not None and (found.state, found.reason, found.generation) == ("failed", "disk_full: no", new)


def test_a_reload_is_asked_for_beside_the_wish(ledger: Ledger) -> None:
    ledger.lifecycle.ask("pause", "shop", "ann")
    before, question = ledger.lifecycle.ask_reload("shop", "bob")
    wish = ledger.lifecycle.wish("shop")
    assert (wish.state, wish.who, wish.reloads, question) == ("paused", "ann", 1, 1)
    assert ledger.lifecycle.events("shop", after=before) == []


@pytest.mark.slow
def test_the_history_is_bounded_and_forgotten_with_the_flow(ledger: Ledger) -> None:
    for _ in range(HISTORY // 2 + 5):
        ledger.lifecycle.ask("pause", "shop", "ann")
        ledger.lifecycle.ask("resume", "shop", "ann")
    assert len(ledger.lifecycle.events("shop", limit=10 * HISTORY)) == HISTORY
    ledger.forget("shop")
    assert ledger.lifecycle.events("shop") == [] and ledger.lifecycle.wish("shop").reloads == 0


def test_a_destination_that_is_removed_keeps_its_place_and_holds_nothing_back(ledger: Ledger) -> None:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "a", 10, generation)
    ledger.begin("shop", "b", 20, generation)
    ledger.keep_destinations("shop", ["a"], generation)
    assert (ledger.checkpoints("shop"), ledger.removed("shop")) == ({"a": 10}, {"b": 20})
    ledger.keep_destinations("shop", ["a", "b"], generation)
    assert (ledger.checkpoints("shop"), ledger.removed("shop")) == ({"a": 10, "b": 20}, {})
