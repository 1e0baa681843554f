"""What a destination itself holds and what the ledger knows are brought together: nothing comes twice, nothing is passed over."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.core.epoch import Epoch
from penstock.destinations.base import Held
from penstock.destinations.files.reader import read_changes
from penstock.engine.places import ledger_address
from penstock.ledger.ledger import Ledger
from tests.conftest import Database
from tests.engine.delivery import Delivery

OPTIONS = {"duckdb": "shop.duckdb", "files": "log"}


@pytest.fixture(params=OPTIONS)
def delivery(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Delivery]:
    database.execute("create table steps (id int primary key)")
    made = Delivery(database, tmp_path, request.param, path=str(tmp_path / OPTIONS[request.param]))
    with made.captured.running():
        yield made
        made.stop()


def ids(delivery: Delivery) -> list[Any]:
    """Every row, or every insert of the log, that is there; the destination has to have stopped."""
    path = str(delivery.options["path"])
    if delivery.kind == "files":
        return sorted(row["id"] for part in read_changes(path, "public", "steps") for row in part.to_pylist())
    with contextlib.closing(duckdb.connect(path, read_only=True)) as connection:
        return [row[0] for row in connection.execute("select id from public.steps order by id").fetchall()]


def deliver(delivery: Delivery, database: Database, *numbers: int) -> Held:
    """Each number in an epoch of its own, by a worker that then ends; what the destination holds."""
    delivery.start()
    for number in numbers:
        database.execute(f"insert into steps values ({number})")
        delivery.settle()
    held: Held | None = delivery.destination.committed()
    delivery.stop()
    assert held is not None
    return held


def test_a_lost_ledger_goes_on_behind_what_the_destination_holds(delivery: Delivery, database: Database) -> None:
    held = deliver(delivery, database, 1, 2, 3)
    assert held.epoch >= 3
    shutil.rmtree(delivery.state)
    after = deliver(delivery, database, 4, 5)
    assert after.epoch >= held.epoch + 2 and after.position > held.position
    assert ids(delivery) == [1, 2, 3, 4, 5]


def test_a_ledger_from_a_backup_follows_the_destination(delivery: Delivery, database: Database) -> None:
    deliver(delivery, database, 1)
    path = delivery.state / "ledger.db"
    backup = {file.name: file.read_bytes() for file in path.parent.glob(f"{path.name}*")}
    held = deliver(delivery, database, 2, 3)
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    for name, content in backup.items():
        (path.parent / name).write_bytes(content)
    assert deliver(delivery, database, 4).epoch == held.epoch + 1
    assert ids(delivery) == [1, 2, 3, 4]


def test_an_epoch_that_the_ledger_has_not_heard_of_is_not_taken_for_the_next_one(delivery: Delivery, database: Database) -> None:
    """As when a worker ends between the commit of an epoch without changes and its record."""
    held = deliver(delivery, database, 1)
    delivery.start()
    identity = delivery.captured.prepared.identity
    empty = Epoch("flow", "target", identity, held.epoch + 1, held.position, held.position, 1, delivery.lease.generation)
    delivery.settle()
    delivery.destination.commit(empty, [])
    delivery.stop()
    assert deliver(delivery, database, 2) != held
    assert ids(delivery) == [1, 2]


def test_a_plan_under_a_number_that_the_destination_has_used_is_made_anew(delivery: Delivery, database: Database) -> None:
    """As when an earlier version lost its ledger, counted from 1 again and ended before its first commit."""
    held = deliver(delivery, database, 1, 2, 3)
    database.execute("insert into steps values (4)")
    delivery.captured.drain()
    upto = delivery.captured.slices()[-1].last
    identity = delivery.captured.prepared.identity
    with contextlib.closing(Ledger(ledger_address(delivery.state))) as ledger:
        ledger.forget("flow")
        generation = ledger.take_over("flow", identity, "{}")
        ledger.begin("flow", "target", held.position, generation)
        ledger.plan(Epoch("flow", "target", identity, 1, held.position, upto, 1, generation), 1)
    deliver(delivery, database, 5)
    assert ids(delivery) == [1, 2, 3, 4, 5]
