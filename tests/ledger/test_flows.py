"""Lists of flows: whole, in order, each flow once, narrowed by labels and states."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.ledger.address import LedgerAddress
from penstock.ledger.flows import KnownFlow
from penstock.ledger.ledger import Ledger
from tests.ledger.conftest import rows


@pytest.fixture
def ledger(address: LedgerAddress) -> Iterator[Ledger]:
    made = Ledger(address)
    for number in range(23):
        labels = {"team": ("shop", "bank")[number % 2], "tier": str(number % 3)}
        made.take_over(f"f{number:02}", "5ec0ffee", json.dumps({"name": f"f{number:02}", "labels": labels}))
    yield made
    made.close()


def pages(ledger: Ledger, limit: int, **narrowed: object) -> list[list[str]]:
    found, after = [], None
    while True:
        page = ledger.flows.page(after, limit, **narrowed)  # type: ignore[arg-type]
        found.append([flow.name for flow in page.flows])
        after = page.after
        if after is None:
            return found


def named(numbers: range) -> list[str]:
    return [f"f{number:02}" for number in numbers]


@pytest.mark.parametrize("limit", [1, 5, 22, 23, 24])
def test_every_flow_is_on_one_page_and_no_page_is_empty(ledger: Ledger, limit: int) -> None:
    found = pages(ledger, limit)
    assert [name for page in found for name in page] == named(range(23))
    assert all(len(page) == limit for page in found[:-1]) and 0 < len(found[-1]) <= limit


def test_what_comes_and_goes_meanwhile_moves_nobody_to_another_page(ledger: Ledger) -> None:
    first = ledger.flows.page(limit=10)
    ledger.forget("f03")
    ledger.take_over("f00a", "5ec0ffee", "{}")
    ledger.take_over("f10a", "5ec0ffee", "{}")
    second = ledger.flows.page(first.after, 10)
    assert [f.name for f in second.flows] == ["f10", "f10a", *named(range(11, 19))]


def test_a_page_is_narrowed_by_all_labels_and_any_of_the_states(ledger: Ledger) -> None:
    assert pages(ledger, 4, labels={"team": "bank"})[0] == ["f01", "f03", "f05", "f07"]
    both = [name for page in pages(ledger, 2, labels={"team": "shop", "tier": "0"}) for name in page]
    assert both == ["f00", "f06", "f12", "f18"]
    assert pages(ledger, 5, labels={"team": "nobody"}) == [[]]
    for name, state in (("f01", "failed"), ("f02", "stopped"), ("f04", "failed")):
        generation = next(f.generation for f in ledger.flows.all() if f.name == name)
        ledger.lifecycle.record(name, generation, state, "because", "worker", state)
    assert pages(ledger, 5, states=["failed"]) == [["f01", "f04"]]
    assert pages(ledger, 5, states=["failed", "stopped"], labels={"team": "shop"}) == [["f02", "f04"]]
    assert pages(ledger, 5, states=[]) == [[]]


def test_a_flow_is_known_with_its_labels_of_now(ledger: Ledger, address: LedgerAddress) -> None:
    found = ledger.flows.find("f04")
    assert isinstance(found, KnownFlow) and found.labels == {"team": "shop", "tier": "1"} and found.updated_at > 0
    ledger.redefine("f04", json.dumps({"name": "f04", "labels": {"team": "bank"}}), found.generation)
    again = ledger.flows.find("f04")
    assert again is not None and again.labels == {"team": "bank"} and again.updated_at >= found.updated_at
    assert ledger.flows.find("nobody") is None
    ledger.forget("f04")
    assert rows(address, "select * from flow_labels where flow = 'f04'") == []
