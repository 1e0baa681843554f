"""The life of a flow under load: paused, resumed, its file changed under it, stopped and started, and nothing lost or twice."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.app import run
from penstock.journal.reader import journal_mark
from penstock.ledger.ledger import Ledger
from tests.conftest import Database
from tests.flows import FlowUnderTest, assert_duckdb_equals_source, assert_log_is_exact, change_log, load, wait_until


class Life:
    """Commands on the flow, and what the ledger says of it."""

    def __init__(self, flow: FlowUnderTest) -> None:
        self.flow = flow
        self.definition: dict[str, Any] = yaml.safe_load(flow.path.read_text())

    def command(self, *words: str) -> int:
        return run(["flow", *words, self.flow.name, "--state", str(self.flow.state)])

    def change(self, **changes: Any) -> None:
        self.flow.path.write_text(yaml.safe_dump({**self.definition, **changes}))

    def events(self) -> list[str]:
        ledger = Ledger(self.flow.state / "ledger.db")
        try:
            return [f"{e.event}: {e.why}" for e in ledger.lifecycle.events(self.flow.name, 100)]
        finally:
            ledger.close()

    def printed(self) -> list[str]:
        """What the destination `lines` has printed."""
        return [line for line in (self.flow.directory / "worker.out").read_text().splitlines() if line.startswith('{"op"')]

    def mark(self) -> int:
        return journal_mark(self.flow.state / "journal" / self.flow.name) or 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flow_lives_as_its_operators_wish(flow: FlowUnderTest, database: Database, tmp_path: Path) -> None:
    life = Life(flow)
    process = flow.start()
    with load(database, seed=8):
        flow.wait_for_progress()
        assert life.command("pause", "--why", "a look around") == 0
        before, mark = flow.checkpoints(), life.mark()
        # Captured, not delivered.
        wait_until(lambda: life.mark() > mark + (1 << 18), 60, "the journal does not grow")
        assert flow.checkpoints() == before
        assert life.command("resume") == 0
        flow.wait_for_progress()

        copy = {"name": "copy", "type": "files", "options": {"path": str(tmp_path / "copy")}}
        life.change(destinations=[*life.definition["destinations"], copy])
        assert life.command("reload") == 0
        wait_until(lambda: flow.checkpoints().get("copy", 0) >= before["log"], 90, flow.output)
        life.change(destinations=[])
        assert life.command("reload") == 1
        life.change(source={"type": "postgres", "options": {"dsn": "postgresql://elsewhere/d"}})
        assert life.command("reload") == 1
        changed = [
            {**d, "batch": {"max_wait": "50ms"}} if d["name"] == "warehouse" else d for d in life.definition["destinations"]
        ]
        life.change(destinations=changed)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("removed copy; restarted warehouse" in e for e in life.events()), 60, flow.output)
        removed = flow.checkpoints()["copy"]
        flow.wait_for_progress(90, "warehouse", "log")
        wait_until(lambda: (flow.confirmed() or 0) > removed, 60, "a destination that is gone holds the source back")

        assert life.command("stop") == 0
        assert process.wait(60) == 0, flow.output()
        assert flow.start().wait(60) == 1 and "flow_stopped" in flow.output()
        assert life.command("start") == 0
    lines = {"name": "lines", "type": "stdout", "options": {"include": ["steps"]}, "start": "now"}
    life.change(destinations=[*life.definition["destinations"], lines])
    flow.run_out()
    late = life.printed()
    assert life.command("rewind", "--destination", "lines", "--to", "oldest") == 0
    flow.run_out()
    # From now on at first, and after the rewinding everything that the change log has.
    assert len(late) < len(life.printed()) - len(late) == len(change_log(flow, "steps"))
    assert_duckdb_equals_source(flow)
    assert_log_is_exact(flow)
    refused = [e for e in life.events() if e.startswith("reload refused")]
    assert len(refused) == 2 and "destinations" in refused[0] and "the source of flow" in refused[1]
