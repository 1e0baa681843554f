"""Commands on the objects of a flow that a real worker runs, or has run."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.app import run
from tests.conftest import Database
from tests.flows import SCHEMA, FlowUnderTest, assert_duckdb_equals_source, wait_until


@pytest.mark.slow
def test_a_flow_that_was_cleaned_up_begins_anew(database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database.execute(SCHEMA)
    flow = FlowUnderTest(database, tmp_path, parallelism=1)
    flow.make_slot()
    database.execute("INSERT INTO accounts VALUES (1, 1)")
    flow.drain()
    cleanup = ["flow", "cleanup", str(flow.path), "--state", str(flow.state), "--yes"]
    assert run(cleanup) == 0
    process = flow.start("--max-empty-reads", "2")
    assert process.wait(120) == 1
    assert "slot_missing" in flow.output() and "penstock flow cleanup" in flow.output()
    assert run([*cleanup, "--remove-state"]) == 0
    flow.make_slot()
    database.execute("INSERT INTO accounts VALUES (2, 2); UPDATE accounts SET v = 3 WHERE id = 1")
    flow.drain()
    assert_duckdb_equals_source(flow)
    assert run([*cleanup, "--remove-state"]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_a_running_worker_lives_with_the_commands(database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database.execute(SCHEMA)
    flow = FlowUnderTest(database, tmp_path, parallelism=1)
    process = flow.start()
    try:
        flow.wait_for_progress()
        where = ["--flow", str(flow.path)]
        assert run(["flow", "cleanup", str(flow.path), "--state", str(flow.state), "--yes"]) == 1
        assert "flow_running" in capsys.readouterr().err
        assert run(["slot", "show", *where]) == 0
        assert f"penstock {flow.name}" in capsys.readouterr().out
        assert run(["slot", "drop", *where, "--yes"]) == 1
        assert run(["publication", "remove", *where, "lines"]) == 0
        wait_until(lambda: "taken out of the publication by command" in flow.output(), 60, flow.output)
        assert run(["publication", "add", *where, "lines"]) == 0
        database.execute("INSERT INTO accounts VALUES (1, 1); INSERT INTO lines VALUES (1, 'x', 1)")
        flow.wait_for_progress()
        assert process.poll() is None, flow.output()
    finally:
        process.terminate()
        process.wait(60)
    assert_duckdb_equals_source(flow)
    capsys.readouterr()
