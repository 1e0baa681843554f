"""Who takes part in loads: leaving, coming back, and what is asked for then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Ledger
from penstock.ledger.loads import Load

ORDERS = ("public", "orders")


@pytest.fixture
def ledger(address: LedgerAddress) -> Iterator[Ledger]:
    opened = Ledger(address)
    yield opened
    opened.close()


@pytest.fixture
def generation(ledger: Ledger) -> int:
    found = ledger.take_over("shop", "source", "{}")
    for name in ("a", "b"):
        ledger.begin("shop", name, 100, found)
    return found


def _plan(ledger: Ledger, generation: int, number: int, *takers: str) -> Load:
    load = next(one for one in ledger.loads.all("shop") if one.id == number)
    ledger.loads.plan(load, generation, [], snapshot=None, position=0, low=0, takers=takers)
    return next(one for one in ledger.loads.all("shop") if one.id == number)


def test_who_is_there_when_a_load_is_planned_takes_part_and_nobody_else(ledger: Ledger, generation: int) -> None:
    number = ledger.loads.request("shop", "backfill", {}, "test")
    load = _plan(ledger, generation, number, "a", "b")
    assert load.takes("a") and load.takes("b") and not load.takes("c")
    assert _plan(ledger, generation, number, "a", "b", "c").takers == ["a", "b"]


def test_a_destination_leaves_open_loads_with_its_flow_and_stays_out_of_them(ledger: Ledger, generation: int) -> None:
    number = ledger.loads.begin("shop", generation, "first", {}, "test", {"a": [ORDERS], "b": [ORDERS]})
    _plan(ledger, generation, number, "a", "b")
    for names in (["a"], ["a", "b"]):
        ledger.keep_destinations("shop", names, generation)
        assert ledger.loads.all("shop")[0].takers == ["a"]
    assert ledger.partaking.begin_again("shop", generation, "a", "test") == []
    assert ledger.partaking.begin_again("shop", generation, "b", "test") == [ORDERS]
    assert ledger.partaking.begin_again("shop", generation, "b", "test") == []
    assert [(e.destination, e.load, e.cursor_at) for e in ledger.loads.entries("shop")] == [
        ("a", number, 0),
        ("b", number + 1, 100),
    ]


def test_a_load_that_is_only_asked_for_waits_for_whoever_is_there_when_it_is_planned(ledger: Ledger, generation: int) -> None:
    ledger.loads.request("shop", "backfill", {"tables": ["public.orders"]}, "test")
    for names in (["a"], ["a", "b"]):
        ledger.keep_destinations("shop", names, generation)
    (load,) = ledger.loads.all("shop")
    assert load.takers is None and load.takes("b")


def test_a_load_for_a_destination_that_is_gone_is_for_nobody(ledger: Ledger, generation: int) -> None:
    ledger.loads.request("shop", "backfill", {"destinations": ["b"]}, "test")
    ledger.keep_destinations("shop", ["a"], generation)
    assert ledger.loads.all("shop")[0].takers == []


def test_of_a_load_from_before_that_was_kept_whoever_was_away_is_out(ledger: Ledger, generation: int) -> None:
    number = ledger.loads.begin("shop", generation, "first", {}, "test", {"a": [ORDERS], "b": [ORDERS]})
    load = next(one for one in ledger.loads.all("shop") if one.id == number)
    ledger.loads.plan(load, generation, [], snapshot=None, position=0, low=0)
    ledger.keep_destinations("shop", ["a"], generation)
    ledger.keep_destinations("shop", ["a", "b"], generation)
    assert ledger.loads.all("shop")[0].takers == ["a"]


@pytest.mark.parametrize(("wish", "asked"), [("running", [["b"]]), ("cancelled", [])])
def test_a_backfill_is_asked_for_again_for_who_has_left_it_unless_it_was_cancelled(
    ledger: Ledger, generation: int, wish: str, asked: list[list[str]]
) -> None:
    spec = {"tables": ["public.orders"], "where": "id > 5"}
    load = _plan(ledger, generation, ledger.loads.request("shop", "backfill", spec, "test"), "a", "b")
    ledger.keep_destinations("shop", ["a"], generation)
    assert ledger.loads.wish("shop", load.id, wish)
    ledger.loads.become(load, generation, "done" if wish == "running" else "cancelled")
    for _ in range(2):
        ledger.keep_destinations("shop", ["a", "b"], generation)
    again = ledger.loads.open("shop")
    assert [one.spec["destinations"] for one in again] == asked
    assert all({**one.spec, "destinations": None} == {**spec, "destinations": None} and one.who == "test" for one in again)


def test_a_load_that_is_cancelled_ends_no_waiting_where_it_goes_on_without_the_destination(
    ledger: Ledger, generation: int
) -> None:
    number = ledger.loads.begin("shop", generation, "table", {}, "test", {"a": [ORDERS], "b": [ORDERS]})
    before = _plan(ledger, generation, number, "a", "b")
    ledger.keep_destinations("shop", ["a"], generation)
    ledger.loads.forget_entries(before, generation, [ORDERS])
    ledger.loads.forget_entries(before, generation)
    assert [e.destination for e in ledger.loads.entries("shop")] == ["b"]
