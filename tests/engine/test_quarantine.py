"""Quarantined tables: one table's failure is its own, what it misses is counted, and its release brings everything, once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.destinations.files.reader import read_changes
from penstock.engine.planner import Limits
from penstock.ledger.quarantines import Quarantined
from penstock.observe import failpoints
from penstock.sources.postgres import assembly
from tests.conftest import Database
from tests.engine.delivery import Delivery, deadly_failpoints
from tests.flows import wait_until

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
KINDS = {"duckdb": "shop.duckdb", "files": "log"}
PLANNING = ["engine.before_plan", "engine.after_plan"]
EARLY = [
    *("engine.after_prepare", "engine.before_commit", "lane.before_write", "lane.after_write"),
    *("destination.before_publish", "destination.in_publish"),
]
LATE = ["destination.after_publish", "engine.after_commit", "engine.after_checkpoint"]


@pytest.fixture(params=KINDS)
def delivery(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Delivery]:
    """A destination that refuses table `bad`, and takes `good`."""
    database.execute("create table bad (id int primary key, v int); create table good (id int primary key, v int)")
    made = Delivery(database, tmp_path, request.param, path=str(tmp_path / KINDS[request.param]))
    made.quarantines = True
    spoil(made)
    with made.captured.running():
        yield made
        failpoints.arm("")
        made.stop()


def spoil(delivery: Delivery) -> None:
    """Makes the destination refuse table `bad`."""
    path = Path(str(delivery.options["path"]))
    if delivery.kind == "duckdb":
        with contextlib.closing(duckdb.connect(str(path))) as connection:
            connection.execute("create schema public; create table public.bad (id integer, v varchar)")
            connection.execute("insert into public.bad values (0, 'no number')")
        return
    (path / "public" / "bad").mkdir(parents=True)
    owner = {"schema": "public", "table": "bad", "flow": "another", "destination": "target"}
    (path / "public" / "bad" / "_table.json").write_text(json.dumps(owner))


def mend(delivery: Delivery) -> None:
    """Takes away what was wrong; the worker has to have stopped."""
    path = Path(str(delivery.options["path"]))
    if delivery.kind == "duckdb":
        with contextlib.closing(duckdb.connect(str(path))) as connection:
            connection.execute("delete from public.bad")
        return
    (path / "public" / "bad" / "_table.json").unlink()


def rows(delivery: Delivery) -> list[Quarantined]:
    return delivery.ledger.quarantines.all("flow", "target")


def release(delivery: Delivery) -> None:
    """Asks for it, and waits until the worker is done with it."""
    (row,) = rows(delivery)
    assert delivery.ledger.quarantines.ask(row)

    def settled() -> bool:
        assert delivery.loop is not None
        delivery.loop.notice()
        return delivery.was_killed or [r.state for r in rows(delivery)] in ([], ["quarantined"])

    wait_until(settled, 60, "not released")


def found(delivery: Delivery, table: str) -> list[tuple[Any, ...]]:
    """What the destination has of a table: its rows, or the identities of the log; it has to have stopped."""
    path = str(delivery.options["path"])
    if delivery.kind == "duckdb":
        with contextlib.closing(duckdb.connect(path, read_only=True)) as connection:
            return connection.execute(f"select id, v from public.{table} order by id").fetchall()
    parts = read_changes(path, "public", table)
    return sorted((row["__position"], row["__ordinal"]) for part in parts for row in part.to_pylist())


def expected(delivery: Delivery, database: Database, table: str) -> list[tuple[Any, ...]]:
    if delivery.kind == "duckdb":
        return database.rows(f"select id, v from {table} order by id")
    return sorted(e["id"] for e in delivery.captured.events(table) if e["op"] != "leave")


WORK = """
insert into bad select g, g from generate_series({0}, {0} + 9) g;
insert into good select g, g from generate_series({0}, {0} + 9) g;
update bad set v = v + 1 where id % 2 = 0;
update good set v = v + 1 where id % 2 = 0;
update bad set id = -id where id = {0};
delete from bad where id = {0} + 5
"""


def test_a_refused_table_is_passed_over_and_counted_while_the_others_go_on(delivery: Delivery, database: Database) -> None:
    loop = delivery.start()
    database.execute(WORK.format(1))
    delivery.settle()
    (row,) = rows(delivery)
    assert (row.qualified, row.code, row.state) == ("public.bad", "schema_refused", "quarantined")
    assert row.passed == loop.status.counts["quarantined"] == 10 + 5 + 1 + 1 and row.reason and row.remedy
    assert loop.status.state == "ok" and loop.status.rows.keys() == {"public.good"}
    delivery.stop()
    # Another worker goes on without it, and counts on.
    loop = delivery.start()
    database.execute("insert into bad values (100, 1); truncate bad; insert into good values (100, 1)")
    delivery.settle()
    (row,) = rows(delivery)
    assert row.passed == 17 + 2 and loop.status.state == "ok"
    delivery.stop()
    assert found(delivery, "good") == expected(delivery, database, "good")


def test_a_released_table_is_brought_what_it_has_missed_and_is_live_again(delivery: Delivery, database: Database) -> None:
    delivery.start()
    for n in (1, 11, 21):
        database.execute(WORK.format(n))
        delivery.settle()
    delivery.stop()
    mend(delivery)
    delivery.start()
    database.execute(WORK.format(31))
    release(delivery)
    assert rows(delivery) == []
    database.execute(WORK.format(41))
    delivery.settle()
    events = [event.event for event in delivery.ledger.lifecycle.events("flow", 10)]
    assert events[-2:] == ["quarantined", "released"]
    delivery.stop()
    for table in ("bad", "good"):
        assert found(delivery, table) == expected(delivery, database, table)


def test_a_release_that_fails_leaves_the_table_in_quarantine_from_where_it_was(delivery: Delivery, database: Database) -> None:
    delivery.start()
    database.execute(WORK.format(1))
    delivery.settle()
    (before,) = rows(delivery)
    release(delivery)
    (after,) = rows(delivery)
    assert (after.position, after.part, after.passed, after.epoch) == (before.position, before.part, before.passed, None)
    database.execute(WORK.format(11))
    delivery.settle()
    assert rows(delivery)[0].passed > before.passed
    delivery.stop()
    mend(delivery)
    delivery.start()
    release(delivery)
    delivery.settle()
    delivery.stop()
    for table in ("bad", "good"):
        assert found(delivery, table) == expected(delivery, database, table)


def test_without_the_option_the_destination_stops(delivery: Delivery, database: Database) -> None:
    delivery.quarantines = False
    loop = delivery.start()
    database.execute(WORK.format(1))
    delivery.captured.drain()
    wait_until(lambda: loop.status.state == "failed", 60, str(loop.status))
    assert loop.error is not None and loop.error.code == "schema_refused" and rows(delivery) == []


def test_a_table_without_a_key_that_appears_later_is_quarantined(database: Database, tmp_path: Path) -> None:
    database.execute("create table good (id int primary key, v int)")
    delivery = Delivery(database, tmp_path, "duckdb", path=str(tmp_path / "shop.duckdb"))
    delivery.quarantines = True
    with delivery.captured.running():
        loop = delivery.start()
        database.execute("insert into good values (1, 1)")
        delivery.settle()
        database.execute("create table keyless (id int, v int); alter publication penstock_flow add table keyless")
        database.execute("insert into keyless values (1, 1), (2, 2)")
        database.execute("insert into good values (2, 2)")
        delivery.settle()
        assert [(r.qualified, r.code, r.passed) for r in rows(delivery)] == [("public.keyless", "table_without_key", 2)]
        assert loop.status.state == "ok"
        delivery.stop()
        assert found(delivery, "good") == [(1, 1), (2, 2)]


def test_a_table_that_is_refused_at_the_commit_is_quarantined_and_released(database: Database, tmp_path: Path) -> None:
    database.execute("create table bad (id int primary key, v int); create table good (id int primary key, v int)")
    delivery = Delivery(database, tmp_path, "duckdb", path=str(tmp_path / "shop.duckdb"))
    delivery.quarantines = True
    with contextlib.closing(duckdb.connect(str(tmp_path / "shop.duckdb"))) as connection:
        connection.execute("create schema public; create table public.bad (id integer, v integer check (v < 10))")
    with delivery.captured.running():
        delivery.start()
        database.execute("insert into bad values (1, 1); insert into good values (1, 1)")
        delivery.settle()
        database.execute("begin; insert into bad values (2, 2), (3, 50); insert into good values (2, 2); commit")
        database.execute("update bad set v = 7 where id < 3")
        delivery.settle()
        assert [(r.qualified, r.code, r.passed) for r in rows(delivery)] == [("public.bad", "value_refused", 4)]
        delivery.stop()
        assert (found(delivery, "bad"), found(delivery, "good")) == ([(1, 1)], [(1, 1), (2, 2)])
        database.execute("update bad set v = 8 where id = 3")
        with contextlib.closing(duckdb.connect(str(tmp_path / "shop.duckdb"))) as connection:
            connection.execute("create or replace table public.bad as from public.bad")
        delivery.start()
        release(delivery)
        delivery.settle()
        delivery.stop()
        assert found(delivery, "bad") == expected(delivery, database, "bad")


@pytest.mark.slow
@pytest.mark.parametrize("splits", [False, True])
def test_a_kill_at_every_boundary_of_a_release_leaves_every_change_once(
    delivery: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch, splits: bool
) -> None:
    sys.stderr.write(f"PENSTOCK_TEST_SEED={SEED}\n")
    deadly_failpoints(monkeypatch)
    chance = random.Random(SEED)
    if splits:
        monkeypatch.setattr(assembly, "SLICE_BYTES", 1_000)
        delivery.limits = Limits(max_rows=10, max_bytes=64 << 20, max_wait=0.0, parallelism=1, splits=True)
    delivery.start()
    for n in range(1, 100, 10):
        database.execute(f"begin; {WORK.format(n)}; commit")
    delivery.settle()
    delivery.stop()
    mend(delivery)
    # An epoch that is committed is not run again: what comes after the commit is struck last, and once.
    kills, asked = [], False
    for point in [*PLANNING, *chance.sample(EARLY, len(EARLY)), chance.choice(LATE)]:
        failpoints.arm(point)
        delivery.start()
        if not asked:
            asked = delivery.ledger.quarantines.ask(rows(delivery)[0])
        wait_until(lambda: delivery.was_killed or not rows(delivery), 60, f"{point}: {rows(delivery)}")
        kills += [point] if delivery.was_killed else []
        delivery.stop()
        delivery.was_killed = False
        if len(kills) == 3:
            database.execute(WORK.format(201))
    failpoints.arm("")
    delivery.start()
    delivery.settle()
    assert not rows(delivery)
    delivery.stop()
    assert len(kills) == len(PLANNING) + len(EARLY) + 1, kills
    for table in ("bad", "good"):
        assert found(delivery, table) == expected(delivery, database, table)
