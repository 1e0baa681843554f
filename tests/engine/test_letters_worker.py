"""Dead letters through a whole worker: set aside, killed between commit and checkpoint, replayed, equal to the source."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from penstock.ledger.letters import Letter
from tests.conftest import Database
from tests.engine.test_letters import SCHEMA
from tests.flows import FlowUnderTest, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def command(flow: FlowUnderTest, *words: str) -> str:
    line = [
        sys.executable,
        "-m",
        "penstock",
        "dead-letter",
        words[0],
        "--flow",
        flow.name,
        "--state",
        str(flow.state),
        *words[1:],
    ]
    return subprocess.run(line, env=os.environ, capture_output=True, text=True, check=True, timeout=60).stdout


def letters(flow: FlowUnderTest) -> list[Letter]:
    from penstock.control.letters import Chosen, LetterDesk

    with LetterDesk(flow.name, flow.state) as desk:
        return desk.find(Chosen())


def rows(flow: FlowUnderTest) -> list[tuple[Any, ...]]:
    with contextlib.closing(duckdb.connect(str(flow.duckdb), read_only=True)) as connection:
        return connection.execute("select * from public.orders order by id").fetchall()


def test_letters_survive_a_kill_before_their_checkpoint_and_are_replayed(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    flow = FlowUnderTest(database, tmp_path)
    definition = yaml.safe_load(flow.path.read_text())
    warehouse = definition["destinations"][0]
    flow.path.write_text(yaml.safe_dump({**definition, "destinations": [warehouse]}))
    flow.make_slot()
    # DuckDB holds its position: after the kill nobody writes this epoch again, so its letters must be there already.
    process = flow.start(PENSTOCK_FAILPOINT="engine.after_commit")
    database.execute("insert into orders values (1, 1), (2, 'NaN'), (3, 3); update orders set n = 5, big = 'x' where id = 2")
    assert process.wait(120) == -signal.SIGKILL, flow.output()
    assert rows(flow) == [(1, 1, None), (3, 3, None)] and letters(flow) == []
    warehouse["options"]["on_unrepresentable"] = "null"
    flow.path.write_text(yaml.safe_dump({**definition, "destinations": [warehouse]}))
    process = flow.start()
    flow.wait_for_progress()
    assert [x.state for x in letters(flow)] == ["open", "waiting"]
    database.execute("update orders set id = 4 where id = 2; insert into orders values (5, 5)")
    flow.wait_for_progress()
    assert [(x.op, x.state) for x in letters(flow)] == [("insert", "open"), ("update", "waiting"), ("update", "waiting")]
    assert "changes set aside" in flow.output()
    assert "3 letters marked" in command(flow, "replay", "--all")
    wait_until(lambda: not letters(flow) or process.poll() is not None, 90, flow.output)
    database.execute("update orders set n = 6 where id = 4")
    flow.wait_for_progress()
    process.terminate()
    assert process.wait(30) == 0, flow.output()
    assert rows(flow) == [(1, 1, None), (3, 3, None), (4, 6, "x"), (5, 5, None)]
    assert rows(flow) == database.rows("select * from orders order by id")
