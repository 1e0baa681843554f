"""Lanes that only stage begin before the plan of their epoch is durable, and a plan that never becomes so costs nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.destinations.files.reader import read_changes
from penstock.engine.places import ledger_address
from penstock.ledger.ledger import Ledger
from penstock.observe import failpoints
from tests.conftest import Database
from tests.engine.delivery import Delivery, deadly_failpoints
from tests.flows import wait_until


@pytest.fixture
def delivery(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Delivery]:
    deadly_failpoints(monkeypatch)
    database.execute("create table steps (id int primary key)")
    made = Delivery(database, tmp_path, "files", path=str(tmp_path / "log"))
    made.eager = True
    with made.captured.running():
        yield made
        made.stop()
    failpoints.arm("")


def ids(delivery: Delivery) -> list[Any]:
    return sorted(row["id"] for part in read_changes(delivery.options["path"], "public", "steps") for row in part.to_pylist())


def staged(delivery: Delivery) -> list[str]:
    return [path.name for path in Path(delivery.options["path"]).glob("_staging/*/*")]


def killed_before_the_plan(delivery: Delivery, database: Database) -> tuple[list[int], list[int]]:
    """Delivers a row and is killed before the plan of the next is durable; epochs that lanes had, and planned ones."""
    delivery.start()
    database.execute("insert into steps values (1)")
    delivery.settle()
    failpoints.arm("engine.before_plan")
    database.execute("insert into steps values (2)")
    delivery.captured.drain()
    assert delivery.loop is not None and delivery.lanes is not None
    loop = delivery.loop

    def killed() -> bool:
        loop.notice()
        return delivery.was_killed

    wait_until(killed, 60, "the failpoint was not reached")
    asked = [work[0]["epoch"]["number"] for work in delivery.lanes.asked]
    delivery.stop()
    delivery.was_killed = False
    with contextlib.closing(Ledger(ledger_address(delivery.state))) as ledger:
        return asked, [epoch.number for epoch in ledger.planned("flow", "target")]


def test_lanes_stage_an_epoch_before_its_plan_is_durable(delivery: Delivery, database: Database) -> None:
    asked, planned = killed_before_the_plan(delivery, database)
    assert (asked, planned) == ([1, 2], [])
    assert len(staged(delivery)) == 1
    assert ids(delivery) == [1]


def test_an_epoch_that_was_staged_and_never_planned_is_made_anew_with_another_span(
    delivery: Delivery, database: Database
) -> None:
    killed_before_the_plan(delivery, database)
    database.execute("insert into steps values (3)")
    delivery.captured.drain()
    delivery.start()
    delivery.settle()
    held = delivery.destination.committed()
    delivery.stop()
    assert held.epoch == 2
    assert ids(delivery) == [1, 2, 3]
    assert staged(delivery) == []


def test_lanes_that_send_wait_for_the_plan(delivery: Delivery, database: Database) -> None:
    delivery.limits = replace(delivery.limits, stages=False)
    asked, planned = killed_before_the_plan(delivery, database)
    assert (asked, planned) == ([1], [])
    assert staged(delivery) == []


def test_tables_are_made_for_epochs_whose_plan_is_durable(delivery: Delivery, database: Database) -> None:
    failpoints.arm("engine.before_plan")
    delivery.start()
    database.execute("insert into steps values (1)")
    delivery.captured.drain()
    assert delivery.loop is not None and delivery.lanes is not None
    loop = delivery.loop

    def killed() -> bool:
        loop.notice()
        return delivery.was_killed

    wait_until(killed, 60, "the failpoint was not reached")
    assert delivery.lanes.asked == []
