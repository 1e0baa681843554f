"""Transactions delivered in several epochs (`respect_source_tx: false`): every change once, and the source told nothing early."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.destinations.base import Held
from penstock.destinations.files.manifest import Manifests
from penstock.destinations.files.reader import read_changes
from penstock.engine.planner import Limits
from penstock.journal.record import unpack_slices
from penstock.observe import failpoints
from penstock.sources.postgres import assembly
from tests.conftest import Database
from tests.engine.delivery import Delivery, deadly_failpoints

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
KINDS = {"duckdb": "shop.duckdb", "files": "log"}
BOUNDARIES = [name for name in failpoints.NAMES if name.startswith(("engine.", "destination.", "lane.")) and "send" not in name]
ROWS = 100
LIMITS = Limits(max_rows=ROWS, max_bytes=64 << 20, max_wait=0.0, parallelism=1, splits=True)
BIG = """
begin;
insert into t select g, repeat('v', 20) from generate_series(1, 600) g;
update t set v = 'updated' where id <= 300;
update t set id = id + 1000 where id between 100 and 200;
delete from t where id between 250 and 280;
insert into t select g, 'again' from generate_series(250, 260) g;
commit
"""


@pytest.fixture(params=KINDS)
def delivery(
    request: pytest.FixtureRequest, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Delivery]:
    monkeypatch.setattr(assembly, "SLICE_BYTES", 3_000)
    database.execute("create table t (id int primary key, v text)")
    made = Delivery(database, tmp_path, request.param, path=str(tmp_path / KINDS[request.param]))
    made.limits = LIMITS
    with made.captured.running():
        yield made
        made.stop()


def log(delivery: Delivery, after: int | None = None) -> list[dict[str, Any]]:
    """The change log, in its order."""
    parts = read_changes(str(delivery.options["path"]), "public", "t", after=after)
    return sorted((row for part in parts for row in part.to_pylist()), key=lambda row: (row["__position"], row["__ordinal"]))


def assert_exact(delivery: Delivery, database: Database) -> None:
    """The destination, which has stopped, has what the source has; a log has every change once."""
    path = str(delivery.options["path"])
    if delivery.kind == "duckdb":
        with contextlib.closing(duckdb.connect(path, read_only=True)) as connection:
            found = connection.execute("select id, v from public.t order by id").fetchall()
        assert found == database.rows("select id, v from t order by id")
        return
    expected = [(e["id"], e["op"].replace("enter", "update")) for e in delivery.captured.events("t") if e["op"] != "leave"]
    assert [((row["__position"], row["__ordinal"]), row["__op"]) for row in log(delivery)] == sorted(expected)


def stop_inside(delivery: Delivery, failpoint: str) -> None:
    """Delivers what the source has until the failpoint kills the worker."""
    delivery.captured.drain()
    failpoints.arm(failpoint)
    delivery.start()
    delivery.settle()
    assert delivery.was_killed
    delivery.stop()
    delivery.was_killed = False


def sizes(delivery: Delivery) -> list[int]:
    """Changes of every epoch that was asked of lanes."""
    assert delivery.lanes is not None
    return [sum(s.changes for s in unpack_slices(asked[0]["slices"])) for asked in delivery.lanes.asked]


def test_epochs_keep_to_their_limits_inside_of_a_transaction(delivery: Delivery, database: Database) -> None:
    loop = delivery.start()
    database.execute("insert into t values (0, 'before')")
    database.execute(BIG)
    database.execute("insert into t values (9999, 'after')")
    delivery.settle()
    largest = max(s.changes for s in delivery.captured.slices())
    assert len(sizes(delivery)) > 8 and max(sizes(delivery)) < ROWS + largest
    assert loop.status.position >= delivery.captured.slices()[-1].last
    delivery.stop()
    assert_exact(delivery, database)


def test_the_source_is_told_of_whole_transactions_only_and_a_restart_goes_on_inside(
    delivery: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly_failpoints(monkeypatch)
    database.execute("insert into t values (0, 'before')")
    database.execute(BIG)
    delivery.captured.drain()
    small, big = sorted({s.last for s in delivery.captured.slices()})
    failpoints.arm("engine.after_checkpoint:4")
    loop = delivery.start()
    delivery.settle()
    assert delivery.was_killed and loop.status.position == small < big
    checkpoint = delivery.ledger.checkpoint("flow", "target")
    assert checkpoint is not None and checkpoint.position == small and checkpoint.part > 0
    held = delivery.destination.committed()
    assert held == Held(small, checkpoint.epoch, checkpoint.part)
    delivery.stop()
    delivery.was_killed = False
    delivery.start()
    delivery.settle()
    first = delivery.lanes.asked[0][0]["epoch"] if delivery.lanes is not None else {}
    assert (first["after"], first["after_part"]) == (small, checkpoint.part)
    assert sum(sizes(delivery)) < sum(s.changes for s in delivery.captured.slices())
    delivery.stop()
    assert_exact(delivery, database)


def test_a_lost_ledger_goes_on_inside_of_the_transaction(
    delivery: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly_failpoints(monkeypatch)
    database.execute(BIG)
    stop_inside(delivery, "engine.after_checkpoint:4")
    shutil.rmtree(delivery.state)
    delivery.start()
    delivery.settle()
    assert sum(sizes(delivery)) < sum(s.changes for s in delivery.captured.slices())
    delivery.stop()
    assert_exact(delivery, database)


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_that_is_made_anew_in_other_pieces_repeats_and_skips_nothing(
    kind: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly_failpoints(monkeypatch)
    monkeypatch.setattr(assembly, "SLICE_BYTES", 3_000)
    database.execute("create table t (id int primary key, v text)")
    delivery = Delivery(database, tmp_path, kind, path=str(tmp_path / KINDS[kind]))
    delivery.limits = LIMITS
    with delivery.captured.running():
        database.execute(BIG)
        stop_inside(delivery, "engine.before_commit:4")
    delivery.captured.directory = tmp_path / "another"
    monkeypatch.setattr(assembly, "SLICE_BYTES", 4_567)
    with delivery.captured.running():
        delivery.start()
        delivery.settle()
        delivery.stop()
        assert_exact(delivery, database)


def test_parts_that_were_rolled_back_are_in_none_of_the_epochs(database: Database, tmp_path: Path) -> None:
    """Which they are stands behind the last change: every epoch of the transaction is told."""
    database.execute("create table t (id int primary key, v text)")
    database.execute(f"alter database {database.name} set debug_logical_replication_streaming = immediate")
    delivery = Delivery(database, tmp_path, "files", path=str(tmp_path / "log"))
    delivery.limits = dataclasses.replace(LIMITS, max_rows=3)
    with delivery.captured.running():
        with database.connect() as c:
            c.execute("begin")
            for n in range(1, 40):
                c.execute("savepoint s")
                c.execute(f"insert into t values ({n}, 'v')")
                c.execute("rollback to s" if n % 3 == 0 else "release s")
            c.execute("commit")
        loop = delivery.start()
        delivery.settle()
        assert loop.status.epochs > 5
        delivery.stop()
        assert [row["id"] for row in log(delivery)] == [n for n in range(1, 40) if n % 3]
        assert_exact(delivery, database)


def test_a_reader_by_position_is_given_the_parts_of_later_transactions(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "SLICE_BYTES", 3_000)
    database.execute("create table t (id int primary key, v text)")
    delivery = Delivery(database, tmp_path, "files", path=str(tmp_path / "log"))
    delivery.limits = LIMITS
    with delivery.captured.running():
        database.execute("insert into t values (0, 'before')")
        database.execute(BIG)
        delivery.captured.drain()
        delivery.start()
        delivery.settle()
        delivery.stop()
        small = delivery.captured.slices()[0].last
        assert [m.upto for m in Manifests(tmp_path / "log", "flow", "target")].count(small) > 5
        assert log(delivery, after=small) == log(delivery)[1:]


@pytest.mark.slow
def test_a_kill_at_every_boundary_leaves_every_change_once(
    delivery: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.stderr.write(f"PENSTOCK_TEST_SEED={SEED}\n")
    deadly_failpoints(monkeypatch)
    chance = random.Random(SEED)
    kills = 0
    for turn, point in enumerate(chance.sample(BOUNDARIES, len(BOUNDARIES))):
        delivery.was_killed = False
        failpoints.arm(f"{point}:{chance.randint(1, 6)}")
        delivery.start()
        low = turn * 10_000
        database.execute(
            f"begin; insert into t select g, 'v' from generate_series({low}, {low + 400}) g;"
            f"update t set v = v || '{turn}' where id % 7 = {turn % 7};"
            f"update t set id = id + 5000 where id between {low} and {low + 50};"
            f"delete from t where id % 13 = {turn % 13}; commit"
        )
        delivery.settle()
        kills += delivery.was_killed
        delivery.stop()
    failpoints.arm("")
    delivery.was_killed = False
    delivery.start()
    delivery.settle()
    delivery.stop()
    assert kills > len(BOUNDARIES) / 2
    assert_exact(delivery, database)
