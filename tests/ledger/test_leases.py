"""Leases: one holder at a time, taken over only when it is given up, over, or its holder is gone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from penstock.core.clock import clock
from penstock.core.epoch import Epoch
from penstock.errors import LeaseLost, LedgerFenced
from penstock.ledger import leases as module
from penstock.ledger.address import LedgerAddress
from penstock.ledger.leases import Holder, Lease, Leases
from penstock.ledger.ledger import Ledger
from tests.ledger.conftest import rows
from tests.processes import wait_until


@pytest.fixture
def leases(address: LedgerAddress) -> Iterator[Leases]:
    made = Leases(address)
    yield made
    made.close()


def take(leases: Leases, holder: Holder | None = None, watched: Lease | None = None) -> Lease | None:
    return leases.take("shop", holder or Holder.here(), "worker", clock(), watched)


def elsewhere(**changes: object) -> Holder:
    return dataclasses.replace(Holder.here(), **{"host": "other", "machine": "other/pid:[1]", **changes})  # type: ignore[arg-type]


def test_a_lease_has_one_holder_until_it_is_given_up(leases: Leases) -> None:
    mine = take(leases)
    assert mine is not None and take(leases) is None
    assert leases.renew("shop", mine.generation, clock())
    leases.give_up("shop", mine.generation)
    successor = take(leases)
    assert successor is not None and successor.generation == mine.generation + 1
    assert not leases.renew("shop", mine.generation, clock())
    leases.give_up("shop", mine.generation)
    found = leases.find("shop")
    assert found is not None and not found.is_given_up


def test_a_lease_that_was_not_renewed_in_time_is_taken_over(address: LedgerAddress) -> None:
    leases = Leases(address, ttl=0.2)
    mine = take(leases)
    assert mine is not None
    # Whenever it is got, and a busy machine may stand still for longer than it lasts, its time was over.
    wait_until(lambda: take(leases) is not None)
    assert clock() >= mine.deadline
    leases.close()


def test_the_lease_of_a_process_that_is_gone_is_free_at_once(leases: Leases) -> None:
    gone = dataclasses.replace(Holder.here(), started=1)
    assert take(leases, gone) is not None
    assert take(leases) is not None


def test_a_lease_from_another_machine_is_watched_not_believed(address: LedgerAddress, leases: Leases) -> None:
    """Its clock says nothing here, nor does its process's number."""
    theirs = take(leases, elsewhere(pid=1, started=1))
    assert theirs is not None
    rows(address, "update leases set deadline = 1, expires_at = 1")
    seen = leases.find("shop")
    assert seen is not None and not seen.is_free() and take(leases) is None
    assert leases.renew("shop", theirs.generation, clock())
    assert take(leases, watched=seen) is None, "it was renewed since it was seen"
    assert take(leases, watched=leases.find("shop")) is not None


def test_the_loser_of_a_lease_can_write_nothing_from_the_moment_of_the_take_over(address: LedgerAddress, leases: Leases) -> None:
    ledger = Ledger(address)
    mine = take(leases)
    assert mine is not None
    ledger.take_over("shop", "5ec0ffee", "{}", mine.generation)
    ledger.begin("shop", "log", 10, mine.generation)
    leases.give_up("shop", mine.generation)
    theirs = take(leases)
    assert theirs is not None
    with pytest.raises(LedgerFenced):
        ledger.plan(Epoch("shop", "log", "5ec0ffee", 1, 10, 20, 1, mine.generation), 1)
    with pytest.raises(LedgerFenced):
        ledger.advance("shop", "log", 99, mine.generation)
    with pytest.raises(LeaseLost):
        ledger.take_over("shop", "5ec0ffee", "{}", mine.generation)
    ledger.take_over("shop", "5ec0ffee", "{}", theirs.generation)
    ledger.advance("shop", "log", 99, theirs.generation)
    ledger.close()


def test_a_process_that_cannot_look_at_itself_once_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    here, started = Holder.here(), module._started
    monkeypatch.setattr(module, "_own", {})
    monkeypatch.setattr(module, "_started", lambda pid: None)
    assert not here.is_gone()
    monkeypatch.setattr(module, "_started", started)
    assert not here.is_gone() and dataclasses.replace(here, started=here.started + 1).is_gone()
