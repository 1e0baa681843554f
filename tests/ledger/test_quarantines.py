"""Quarantined tables in the ledger: what each has missed is counted once, and only the newest generation writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from penstock.errors import LedgerFenced
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Ledger
from penstock.ledger.quarantines import Quarantined

ORDERS = Quarantined("shop", "warehouse", "public", "orders", "schema_refused", "no", "Mend it.", 1000, 7)
NAME = ("public", "orders")


@pytest.fixture
def ledger(address: LedgerAddress) -> Iterator[Ledger]:
    made = Ledger(address)
    yield made
    made.close()


@pytest.fixture
def generation(ledger: Ledger) -> int:
    made = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.quarantines.admit(ORDERS, made)
    return made


def one(ledger: Ledger) -> Quarantined:
    (row,) = ledger.quarantines.all("shop", "warehouse")
    return row


def test_what_an_epoch_passes_over_is_counted_once_however_often_it_runs(ledger: Ledger, generation: int) -> None:
    for epoch, passed in ((5, 10), (5, 10), (5, 12), (6, 3), (6, 3)):
        ledger.quarantines.count("shop", "warehouse", generation, epoch, {NAME: passed})
    assert one(ledger).passed == 15
    assert ledger.quarantines.all("shop", "log") == []


def test_a_table_that_fails_again_keeps_its_place_and_its_count(ledger: Ledger, generation: int) -> None:
    ledger.quarantines.count("shop", "warehouse", generation, 5, {NAME: 10})
    assert ledger.quarantines.ask(one(ledger)) and one(ledger).state == "asked"
    assert not ledger.quarantines.ask(one(ledger))
    ledger.quarantines.catch_up(one(ledger), generation, 6, 2000, 0)
    assert (one(ledger).state, one(ledger).epoch, one(ledger).upto) == ("catching_up", 6, 2000)
    assert not ledger.quarantines.skip(one(ledger))
    ledger.quarantines.admit(dataclasses.replace(ORDERS, code="value_refused", position=2000, part=0), generation)
    found = one(ledger)
    assert (found.state, found.code, found.position, found.part) == ("quarantined", "value_refused", 1000, 7)
    assert (found.passed, found.epoch, found.upto) == (10, None, None)
    assert ledger.quarantines.skip(found) and ledger.quarantines.all("shop") == []


def test_rows_of_a_load_that_were_passed_over_are_in_no_journal(ledger: Ledger, generation: int) -> None:
    ledger.quarantines.count("shop", "warehouse", generation, 5, {NAME: 10}, loads=True)
    assert (one(ledger).passed, one(ledger).position, one(ledger).part) == (10, 0, 0)


def test_an_older_generation_writes_nothing(ledger: Ledger, generation: int) -> None:
    ledger.take_over("shop", "5ec0ffee", "{}")
    writes: tuple[Callable[[], None], ...] = (
        lambda: ledger.quarantines.admit(ORDERS, generation),
        lambda: ledger.quarantines.count("shop", "warehouse", generation, 5, {NAME: 1}),
        lambda: ledger.quarantines.catch_up(ORDERS, generation, 6, 2000, 0),
        lambda: ledger.quarantines.ask_again(ORDERS, generation),
        lambda: ledger.quarantines.end(ORDERS, generation),
    )
    for write in writes:
        with pytest.raises(LedgerFenced):
            write()
    assert (one(ledger).state, one(ledger).passed) == ("quarantined", 0)


def test_a_flow_that_is_forgotten_has_none(ledger: Ledger, generation: int) -> None:
    ledger.forget("shop")
    assert ledger.quarantines.all("shop") == []
