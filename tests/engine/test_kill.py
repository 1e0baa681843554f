"""Killed at every named boundary and at random moments, under load: nothing lost, nothing twice, nothing confirmed early."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from penstock.observe.failpoints import NAMES
from tests.conftest import Database
from tests.flows import (
    FlowUnderTest,
    assert_duckdb_equals_source,
    assert_log_is_exact,
    load,
    wait_until,
)

RANDOM_KILLS = 20


def _run_to_failpoint(flow: FlowUnderTest, name: str, marks: Path, count: int) -> None:
    """One worker that is killed, or loses a process of its own, at the failpoint; then killed anyway."""
    marks.mkdir(exist_ok=True)
    process = flow.start(PENSTOCK_FAILPOINT=f"{name}:{count}", PENSTOCK_FAILPOINT_ONCE=str(marks))
    wait_until(lambda: (marks / name).exists() or process.poll() is not None, 120, f"{name} was not reached: {flow.output()}")
    if name.startswith(("engine.", "destination.")):
        assert process.wait(30) == -signal.SIGKILL, flow.output()
    else:
        # Capture and lanes come back by themselves: the worker goes on without a restart by hand.
        flow.wait_for_progress()
        assert process.poll() is None, flow.output()
        flow.kill()
    assert (marks / name).exists(), f"{name} was never reached: {flow.output()}"
    flow.assert_nothing_confirmed_early()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_every_failpoint_nothing_is_lost_or_twice(flow: FlowUnderTest, database: Database, tmp_path: Path) -> None:
    chance = random.Random(7)
    with load(database, seed=1) as commits:
        for name in NAMES:
            _run_to_failpoint(flow, name, tmp_path / "marks", chance.choice((1, 2, 5)))
    assert commits[0] > 500
    flow.drain()
    flow.assert_nothing_confirmed_early()
    assert_duckdb_equals_source(flow)
    assert_log_is_exact(flow)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_nothing_is_lost_or_twice(flow: FlowUnderTest, database: Database) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
    chance = random.Random(seed)
    with load(database, seed=seed):
        for _ in range(RANDOM_KILLS):
            process = flow.start()
            # From the first moments of a start to well into the stream.
            with pytest.raises(Exception, match="timed out"):
                process.wait(chance.uniform(0.5, 8))
            flow.assert_nothing_confirmed_early()
            flow.kill()
    flow.drain()
    assert_duckdb_equals_source(flow)
    assert_log_is_exact(flow)
