"""`penstock worker` as a process: it drains, stops in order, refuses in one message, and starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from penstock.destinations.files.reader import read_changes
from penstock.sources.postgres.wire import ReplicationConnection
from tests.conftest import Database

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()", "worker"]


class Site:
    """A flow file from a database to files, and the state directory of its worker."""

    def __init__(self, directory: Path, database: Database) -> None:
        self.directory, self.database = directory, database
        self.state = directory / "state"
        self.log = directory / "log"
        self.slot = f"s_{database.name}"
        self.started: list[subprocess.Popen[str]] = []

    def flow(self, *destinations: dict[str, Any], file: str = "shop.yaml", **options: Any) -> Path:
        source = {"dsn": self.database.dsn, "slot": self.slot, "heartbeat_interval": "1s", **options}
        files = {"name": "log", "type": "files", "options": {"path": str(self.log)}, "batch": {"max_wait": "100ms"}}
        raw = {"name": "shop", "source": {"type": "postgres", "options": source}, "destinations": list(destinations) or [files]}
        path = self.directory / file
        path.write_text(yaml.safe_dump(raw))
        return path

    def start(self, flow: Path, *more: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [*COMMAND, "--flow", str(flow), "--state", str(self.state), *more]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def run(self, flow: Path, *more: str) -> tuple[int, str]:
        process = self.start(flow, *more)
        _, shown = process.communicate(timeout=120)
        return process.returncode, shown

    def refused(self, flow: Path, code: str, *more: str) -> str:
        """Runs a worker that cannot work: one message with that code and a remedy, no traceback, an exit code."""
        ended, shown = self.run(flow, "--max-empty-reads", "2", "--log-level", "error", *more)
        assert ended == 1, shown
        assert "Traceback" not in shown and shown.count(f"{code}: ") == 1 and "  → " in shown, shown
        return shown

    def rows(self) -> int:
        return sum(batch.num_rows for batch in read_changes(self.log, "public", "a"))


@pytest.fixture
def site(tmp_path: Path, database: Database) -> Iterator[Site]:
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    made = Site(tmp_path, database)
    yield made
    for process in made.started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def wait_for(condition: Any, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_worker_drains_and_ends_with_0_and_goes_on_where_it_was(site: Site) -> None:
    flow = site.flow()
    assert site.run(flow, "--max-empty-reads", "2")[0] == 0
    site.database.execute("INSERT INTO a SELECT n, 'x' FROM generate_series(1, 1000) n")
    ended, shown = site.run(flow, "--max-empty-reads", "2")
    assert ended == 0, shown
    assert site.rows() == 1000


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_worker_in_order_and_nothing_is_left_behind(site: Site, number: signal.Signals) -> None:
    process = site.start(site.flow())
    wait_for(lambda: site.database.rows("SELECT 1 FROM pg_stat_replication"), "the start of capture")
    site.database.execute("INSERT INTO a SELECT n, 'x' FROM generate_series(1, 100) n")
    wait_for(lambda: site.log.exists() and site.rows() == 100, "the arrival of the rows")
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(number)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in shown, shown
    assert psutil.wait_procs(family, timeout=20)[1] == []


@pytest.mark.slow
def test_two_workers_of_one_flow_do_not_meet(site: Site) -> None:
    flow = site.flow()
    process = site.start(flow)
    wait_for(lambda: site.database.rows("SELECT 1 FROM pg_stat_replication"), "the start of capture")
    assert str(process.pid) in site.refused(flow, "flow_running", "--no-wait")
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.slow
def test_what_cannot_work_is_one_message_and_the_next_correct_start_works(site: Site) -> None:
    server, name = site.database.server, site.database.name
    (site.directory / "file").write_text("")
    unwritable = {"name": "log", "type": "files", "options": {"path": str(site.directory / "file" / "log")}}
    troubles = {
        "source_refused": site.flow(dsn=server.dsn(name, password="hush"), file="password.yaml"),
        "source_database_missing": site.flow(dsn=server.dsn("nowhere"), file="database.yaml"),
        "source_unreachable": site.flow(dsn="postgresql://u:hush@127.0.0.1:1/d", file="host.yaml"),
        "destination_unwritable": site.flow(unwritable, file="path.yaml"),
    }
    for code, flow in troubles.items():
        assert "hush" not in site.refused(flow, code)
    assert "hush" not in (site.state / "logs" / "worker.log").read_text()
    flow = site.flow()
    assert site.run(flow, "--max-empty-reads", "1")[0] == 0
    reader = ReplicationConnection.connect(site.database.dsn, application_name="somebody")
    reader.start_replication(site.slot, 0, {"proto_version": "1", "publication_names": "penstock_shop"})
    assert "somebody" in site.refused(flow, "slot_in_use")
    reader.end()
    assert site.run(flow, "--max-empty-reads", "1")[0] == 0


@pytest.mark.slow
def test_a_table_without_key_is_refused_where_a_key_is_needed(site: Site) -> None:
    site.database.execute("CREATE TABLE nokey (v int)")
    duckdb = {"name": "w", "type": "duckdb", "options": {"path": str(site.directory / "w.duckdb")}}
    assert "ADD PRIMARY KEY" in site.refused(site.flow(duckdb), "table_without_key")
    site.database.execute("ALTER TABLE nokey REPLICA IDENTITY FULL")
    assert "ADD PRIMARY KEY" in site.refused(site.flow(duckdb), "table_without_key")
    site.database.execute("ALTER TABLE nokey ADD PRIMARY KEY (v)")
    assert site.run(site.flow(duckdb), "--max-empty-reads", "1")[0] == 0
