"""Destinations that are out of a flow while a load of theirs is open: back again, they get all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.engine import lease as leasing
from penstock.engine.places import ledger_address
from penstock.journal.chunks import chunk_path, remove_loads
from penstock.ledger.ledger import Ledger
from tests.conftest import Database
from tests.engine.loads import LoadedDelivery
from tests.engine.test_loading import assert_equal, delivering, filled
from tests.flows import wait_until

__all__ = ["filled"]

CHANGES = """
update accounts set v = v + 1 where id < 100; delete from accounts where id between 100 and 149;
insert into lines values (1000, 'new', 1); delete from "We""ird; table" where "Id" < 20; insert into steps values (1)
"""


def _leave(delivery: LoadedDelivery, then: str) -> None:
    """What a worker does whose flow has another destination now: the load goes on without the one that is gone."""
    ledger = Ledger(ledger_address(delivery.state))
    lease = leasing.take(ledger_address(delivery.state), "flow", "worker")
    assert lease is not None
    ledger.take_over("flow", delivery.captured.prepared.identity, "{}", lease.generation)
    ledger.keep_destinations("flow", ["other"], lease.generation)
    (open_load,) = ledger.loads.open("flow")
    if then == "is done":
        ledger.loads.become(open_load, lease.generation, "done")
        remove_loads(delivery.captured.directory, ())
    for chunk in ledger.loads.chunks(open_load.id):
        # The others have them.
        chunk_path(delivery.captured.directory, open_load.id, chunk.file or "none").unlink(missing_ok=True)
    ledger.close()
    lease.give_up()


def _half_loaded(delivery: LoadedDelivery) -> None:
    delivery.most = 1
    loop = delivery.start()
    wait_until(lambda: any(delivery.ledger.loads.delivered(1).values()), 60, "nothing is delivered")
    assert loop.error is None
    delivery.stop()
    delivery.most = None


@pytest.mark.parametrize(
    ("kind", "then"), [("files", "is done"), ("duckdb", "is done"), ("duckdb", "goes on"), ("duckdb", "has nobody left")]
)
@pytest.mark.timeout(300)
def test_a_destination_that_was_out_of_the_flow_gets_all_of_the_load_that_went_on_without_it(
    filled: Database, tmp_path: Path, kind: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, kind, first=True) as delivery:
        delivery.others = () if then == "has nobody left" else ("other",)
        _half_loaded(delivery)
        _leave(delivery, then)
        filled.execute(CHANGES)
        keep = ["target", *delivery.others]
        monkeypatch.setattr(
            delivery, "before_start", lambda: delivery.ledger.keep_destinations("flow", keep, delivery.lease.generation)
        )
        loop = delivery.start()
        filled.execute("insert into steps values (2)")

        def settled() -> bool:
            delivery.captured.link.asked += 1
            loop.notice()
            assert loop.error is None, loop.error
            return all(load.kind == "first" for load in delivery.ledger.loads.open("flow")) and all(
                entry.state == "live" for entry in delivery.ledger.loads.entries("flow", "target")
            )

        wait_until(settled, 120, lambda: f"not loaded anew: {delivery.ledger.loads.all('flow')}, {loop.status}")
        filled.execute("insert into steps values (3)")
        delivery.settle()
        loads = delivery.ledger.loads.all("flow")
        assert [load.kind for load in loads] == ["first", "table"], "loaded once, and not again"
        assert loads[0].is_over == (then != "goes on")
        delivery.stop()
        assert_equal(delivery)


@pytest.mark.timeout(300)
def test_a_worker_that_dies_before_the_tables_are_loaded_anew_leaves_that_to_the_next(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, "duckdb", first=True) as delivery:
        delivery.others = ("other",)
        _half_loaded(delivery)
        _leave(delivery, "is done")
        monkeypatch.setattr(
            delivery, "before_start", lambda: delivery.ledger.keep_destinations("flow", ["target"], delivery.lease.generation)
        )
        delivery.most = 0
        loop = delivery.start()
        wait_until(lambda: len(delivery.ledger.loads.all("flow")) == 2, 60, "nothing is asked for")
        # The tables wait for their load: neither told nor trimmed is what they have to catch up with.
        position = loop.status.position
        filled.execute("insert into steps values (1)")
        wait_until(lambda: _moved(delivery, position), 60, "the stream does not go on")
        assert 0 < loop.settled() <= position and 0 < loop.needed() <= position
        delivery.stop()
        delivery.most = None
        filled.execute(CHANGES.replace("(1)", "(2)"))
        delivery.start()
        delivery.finish()
        assert len(delivery.ledger.loads.all("flow")) == 2
        delivery.stop()
        assert_equal(delivery)


def _moved(delivery: LoadedDelivery, position: int) -> bool:
    delivery.captured.link.asked += 1
    assert delivery.loop is not None
    delivery.loop.notice()
    return delivery.loop.status.position > position


@pytest.mark.timeout(300)
def test_a_backfill_that_a_destination_has_left_is_asked_for_again_when_it_is_back(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with delivering(filled, tmp_path, "duckdb", first=False) as delivery:
        delivery.others = ("other",)
        delivery.most = 1
        delivery.start()
        number = delivery.backfill("public.accounts")
        wait_until(lambda: any(delivery.ledger.loads.delivered(number).values()), 60, "nothing is delivered")
        delivery.stop()
        delivery.most = None
        _leave(delivery, "is done")
        monkeypatch.setattr(
            delivery, "before_start", lambda: delivery.ledger.keep_destinations("flow", ["target"], delivery.lease.generation)
        )
        for _ in range(2):
            delivery.start()
            delivery.finish()
            again = delivery.ledger.loads.all("flow")[1:]
            assert [(one.kind, one.state, one.spec["tables"]) for one in again] == [("backfill", "done", ["public.accounts"])]
            delivery.stop()
        assert_equal(delivery, (("accounts", "id"),))
