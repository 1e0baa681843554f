"""A worker whose ledger is on a PostgreSQL server: killed, cut off from it, and asked for from another state directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from tests.conftest import Database
from tests.flows import SCHEMA, FlowUnderTest, assert_duckdb_equals_source, load, wait_until


class SharedFlow(FlowUnderTest):
    """A flow under test that keeps its ledger on a server."""

    def __init__(self, database: Database, directory: Path, ledger: EmbeddedPostgres) -> None:
        super().__init__(database, directory)
        self.ledger = ledger

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        return super().start(*arguments, **{"PENSTOCK_DATABASE_URL": self.ledger.dsn(), **environment})

    def checkpoints(self) -> dict[str, int]:
        try:
            found = self.ledger.run(f"select destination, position from penstock_ledger.checkpoints where flow = '{self.name}'")
        except psycopg.Error:
            return {}
        return {str(name): int(str(position)) for name, position in found}

    def command(self, *words: str, state: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", *words, "--state", str(state or self.state)],
            env={**os.environ, "PENSTOCK_DATABASE_URL": self.ledger.dsn()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def shown(self, state: Path | None = None) -> dict[str, Any]:
        answer = self.command("flow", "show", self.name, "--json", state=state)
        assert answer.returncode == 0, answer.stderr
        found: dict[str, Any] = json.loads(answer.stdout)
        return found


@pytest.fixture
def flow(database: Database, tmp_path: Path) -> Iterator[SharedFlow]:
    database.execute(SCHEMA)
    # A server of its own: in the source's, every checkpoint would be news in the source's log.
    with EmbeddedPostgres(settings={"fsync": "off"}) as ledger:
        made = SharedFlow(database, tmp_path, ledger)
        made.make_slot()
        yield made
        if made.process is not None and made.process.poll() is None:
            made.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_with_its_ledger_on_a_server_survives_kills_and_the_servers_restart(
    flow: SharedFlow, database: Database
) -> None:
    with load(database, seed=3, pause=0.02):
        for name in ("engine.after_commit", "engine.after_checkpoint"):
            process = flow.start(PENSTOCK_FAILPOINT=f"{name}:3")
            assert process.wait(120) == -signal.SIGKILL, flow.output()
            flow.assert_nothing_confirmed_early()
        process = flow.start()
        flow.wait_for_progress()
        flow.ledger.restart("immediate")
        flow.wait_for_progress()
        assert process.poll() is None and "lease was lost" not in flow.output(), flow.output()
        assert not (flow.state / "ledger.db").exists()
        assert flow.shown()["state"] == "running"
        for command, state in (("pause", "paused"), ("resume", "running")):
            assert state in flow.command("flow", command, flow.name).stdout
    assert flow.command("flow", "stop", flow.name).returncode == 0
    assert process.wait(60) == 0, flow.output()
    assert flow.command("flow", "start", flow.name).returncode == 0
    flow.run_out()
    flow.assert_nothing_confirmed_early()
    assert_duckdb_equals_source(flow)
    assert flow.ledger.password not in flow.output() + (flow.state / "logs" / "worker.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_without_the_flows_journal_says_where_it_is_and_begins_none(
    flow: SharedFlow, database: Database, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    flow.start()
    with load(database, seed=4, pause=0.02):
        flow.wait_for_progress()
    placed = f"select journal from penstock_ledger.flows where name = '{flow.name}'"
    wait_until(lambda: flow.ledger.run(placed) != [(None,)], 60, flow.output)
    words = ("worker", "--flow", str(flow.path), "--no-wait", "--max-empty-reads", "1")
    refused = flow.command(*words, state=elsewhere)
    assert refused.returncode == 1 and "journal_elsewhere" in refused.stderr, refused.stderr
    flow.kill()
    refused = flow.command(*words, state=elsewhere)
    assert refused.returncode == 1 and str(flow.state / "journal") in refused.stderr, refused.stderr
    assert not (elsewhere / "journal").exists()
