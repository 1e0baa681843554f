"""Killed at every named boundary and at random moments, under load: nothing lost, nothing twice, nothing confirmed early.

Every kind of destination stands side by side; `make chaos` is the long form.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.observe.failpoints import NAMES
from tests.chaos.site import Site
from tests.conftest import Database
from tests.flows import FlowUnderTest, load, wait_until

RANDOM_KILLS = 20
"""`make chaos` kills at random for as long as it is told."""


@pytest.fixture
def site(database: Database, tmp_path: Path) -> Iterator[Site]:
    target = Database(database.server, f"copy_{database.name}")
    database.server.run(f"create database {target.name}")
    made = Site(tmp_path, database, target, max_wait="100ms")
    yield made
    made.close()
    database.server.run(f"drop database {target.name} with (force)")


def _killed_at(flow: FlowUnderTest, name: str, marks: Path, count: int) -> None:
    """One worker that is killed at the failpoint."""
    process = flow.start(PENSTOCK_FAILPOINT=f"{name}:{count}", PENSTOCK_FAILPOINT_ONCE=str(marks))
    wait_until(lambda: (marks / name).exists() or process.poll() is not None, 120, f"{name} was not reached: {flow.output()}")
    assert process.wait(30) == -signal.SIGKILL, flow.output()
    assert (marks / name).exists(), f"{name} was never reached: {flow.output()}"
    flow.assert_nothing_confirmed_early()


def _goes_on_after(flow: FlowUnderTest, names: list[str], marks: Path, chance: random.Random) -> None:
    """One worker that loses a process of its own at each failpoint, and goes on without a restart by hand."""
    setting = ",".join(f"{name}:{chance.choice((1, 2, 5))}" for name in names)
    process = flow.start(PENSTOCK_FAILPOINT=setting, PENSTOCK_FAILPOINT_ONCE=str(marks))
    for name in names:
        what = f"{name} was not reached: {flow.output()}"
        wait_until(lambda name=name: (marks / name).exists() or process.poll() is not None, 120, what)  # type: ignore[misc]
        flow.assert_nothing_confirmed_early()
    flow.wait_for_progress()
    assert process.poll() is None, flow.output()
    flow.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_every_failpoint_nothing_is_lost_or_twice(site: Site, database: Database) -> None:
    chance, flow, marks = random.Random(7), site.flow, site.marks
    marks.mkdir()
    ending = [name for name in NAMES if name.startswith(("engine.", "destination."))]
    with load(database, seed=1, pause=0.015) as commits:
        _goes_on_after(flow, [name for name in NAMES if name not in ending], marks, chance)
        for name in ending:
            _killed_at(flow, name, marks, chance.choice((1, 2, 5)))
    assert commits[0] > 500
    flow.drain()
    flow.assert_nothing_confirmed_early()
    site.assert_everything_is_right()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_nothing_is_lost_or_twice(site: Site, database: Database) -> None:
    flow = site.flow
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
    chance = random.Random(seed)
    with load(database, seed=seed, pause=0.015):
        for _ in range(RANDOM_KILLS):
            process = flow.start()
            # From the first moments of a start to well into the stream.
            with pytest.raises(Exception, match="timed out"):
                process.wait(chance.uniform(0.5, 8))
            flow.assert_nothing_confirmed_early()
            flow.kill()
    flow.drain()
    site.assert_everything_is_right()
