"""How a worker begins after it has waited, and what it leaves when it ends for good."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.app import run
from penstock.cli.files import running_flow
from penstock.cli.stopping import Running
from penstock.core.flow import Flow
from penstock.engine.places import ledger_address
from penstock.engine.resolving import ASKED, DONE
from penstock.engine.worker import Worker
from penstock.errors import PublicationMissing, retry_of
from penstock.ledger.ledger import Ledger
from tests.conftest import Database
from tests.flows import SCHEMA, FlowUnderTest, assert_duckdb_equals_source, wait_until
from tests.sparks import shared_spark


def _flow(directory: Path, *names: str) -> Flow:
    destinations = [{"name": name, "type": "files", "options": {"path": str(directory / name)}} for name in names]
    source = {"type": "postgres", "options": {"dsn": "postgresql://nowhere"}}
    return Flow.model_validate({"name": "shop", "source": source, "destinations": destinations})


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("wait", [True, False])
def test_a_worker_runs_the_flow_as_it_is_defined_when_its_turn_comes(tmp_path: Path, wait: bool) -> None:
    new = _flow(tmp_path, "log", "later")
    worker = Worker(_flow(tmp_path, "log"), tmp_path / "state", reload=lambda: new, host=shared_spark())
    assert worker._take_lease(wait)
    assert worker.flow == new
    worker._shut_down(("stopped", None))
    assert worker._lease is not None
    worker._lease.give_up()


@pytest.mark.timeout(300)
def test_what_is_asked_of_a_worker_that_still_starts_is_done_and_answered_when_it_runs(
    database: Database, tmp_path: Path
) -> None:
    database.execute(SCHEMA)
    flow = FlowUnderTest(database, tmp_path)
    reads: list[Flow] = []

    def read() -> Flow:
        reads.append(running_flow(flow.path))
        return reads[-1]

    worker = Worker(running_flow(flow.path), flow.state, reload=read, host=shared_spark())
    running = Running("worker", worker.run)
    ledger = Ledger(ledger_address(flow.state))
    try:
        with database.connect() as open_transaction:
            open_transaction.execute("begin; select pg_current_xact_id()")
            making = (
                "select from pg_stat_activity where datname = %s and wait_event_type = 'Lock'"
                " and query ilike '%%pg_create_logical_replication_slot%%'"
            )
            wait_until(lambda: bool(database.rows(making, database.name)), 60, "the slot is not being made")
            assert len(reads) == 1, "the lease is held, and the definition was read with it"
            definition = yaml.safe_load(flow.path.read_text())
            later = {"name": "later", "type": "files", "options": {"path": str(tmp_path / "later")}}
            flow.path.write_text(yaml.safe_dump({**definition, "destinations": [*definition["destinations"], later]}))
            _, reload = ledger.lifecycle.ask_reload(flow.name, "ann")
            resolve = ledger.lifecycle.note(flow.name, ASKED, "ann", "{}")

        def answers() -> dict[int | None, str]:
            return {e.answers: f"{e.event}: {e.why}" for e in ledger.lifecycle.events(flow.name, 50) if e.answers is not None}

        wait_until(lambda: {reload, resolve} <= answers().keys(), 60, lambda: f"no answer: {answers()}")
        assert answers() == {reload: "reloaded: added later", resolve: f"{DONE}: []"}
        assert [use.name for use in worker.flow.destinations] == ["warehouse", "log", "later"]
    finally:
        worker.stop()
        running.wait(60)
        ledger.close()


def test_an_end_that_nobody_expected_is_recorded_as_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(_flow(tmp_path, "log"), tmp_path / "state", host=shared_spark())

    def slip(wait: bool) -> None:
        assert worker._ledger is not None and worker._lease is not None
        worker._ledger.take_over("shop", "source", "{}", worker._lease.generation)
        raise KeyError("a name of ours")

    monkeypatch.setattr(worker, "_start", slip)
    with pytest.raises(KeyError):
        worker.run()
    ledger = Ledger(ledger_address(tmp_path / "state"))
    (last,), known = ledger.lifecycle.events("shop", limit=1), ledger.lifecycle.flow("shop")
    ledger.close()
    assert last.event == "failed" and "KeyError" in str(last.why) and "ours" not in str(last.why)
    # Whoever runs the flow starts it again.
    assert retry_of(str(last.why).partition(":")[0]) == "timed"
    assert known is not None and known.state == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "slots"), [("drop_slot", 0), ("hold_slot", 1)])
def test_a_flow_that_fails_for_good_gives_its_slot_up_as_it_is_told(
    database: Database, tmp_path: Path, mode: str, slots: int
) -> None:
    database.execute(SCHEMA)
    flow = FlowUnderTest(database, tmp_path, config={"failure_mode": mode})
    worker = Worker(running_flow(flow.path), flow.state, host=shared_spark())
    found: list[Any] = []

    def run() -> None:
        try:
            worker.run()
        except PublicationMissing as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(worker.is_ready, 120, "the flow does not run")
        database.execute(f"drop publication penstock_{flow.name}")
        wait_until(lambda: not thread.is_alive(), 60, "the flow goes on without its publication")
    finally:
        worker.stop()
        thread.join(30)
    assert found
    assert len(database.rows("select 1 from pg_replication_slots where slot_name = %s", flow.slot)) == slots


@pytest.mark.slow
@pytest.mark.parametrize(("snapshot", "loads_only", "why"), [("only", False, "loaded"), ("never", True, "drained")])
def test_a_flow_that_is_defined_to_load_only_says_so_when_it_ends_and_a_run_that_was_asked_to_does_not(
    database: Database, tmp_path: Path, snapshot: str, loads_only: bool, why: str
) -> None:
    database.execute(f"{SCHEMA}; insert into steps values (1)")
    flow = FlowUnderTest(database, tmp_path, snapshot=snapshot)
    Worker(running_flow(flow.path), flow.state, host=shared_spark(), loads_only=loads_only).run()
    ledger = Ledger(ledger_address(flow.state))
    known, (first,) = ledger.lifecycle.flow(flow.name), ledger.loads.all(flow.name)
    ledger.close()
    assert known is not None and (known.state, known.reason, first.state) == ("stopped", why, "done")
    assert_duckdb_equals_source(flow)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_destination_that_was_given_up_is_tried_again_when_the_flow_is_reloaded(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    hook = {"name": "hook", "type": "http", "options": {"url": f"http://127.0.0.1:{port}/"}, "retry": {"max_attempts": 2}}
    flow = FlowUnderTest(database, tmp_path, more=[hook])
    worker = Worker(running_flow(flow.path), flow.state, reload=lambda: running_flow(flow.path), host=shared_spark())
    running = Running("worker", worker.run)
    try:
        wait_until(worker.is_ready, 120, "the flow does not run")
        database.execute("insert into steps values (1)")

        def why() -> str:
            ledger = Ledger(ledger_address(flow.state))
            try:
                return "; ".join(f"{e.event}: {e.why}" for e in ledger.lifecycle.events(flow.name, 20))
            finally:
                ledger.close()

        assert worker._loops is not None
        loops = worker._loops
        wait_until(lambda: loops.failed() == ("hook",), 60, why)
        (said,) = [loop.status.error for loop in loops if loop.status.name == "hook"]
        assert said is not None and f"`penstock flow reload {flow.name}`" in str(said["remedy"])
        received = tmp_path / "hook"
        receiver = subprocess.Popen([sys.executable, "-m", "tests.chaos.receiving", str(port), str(received)])
        try:
            wait_until(lambda: _listens(port), 30, "nobody listens")
            assert run(["flow", "reload", flow.name, "--state", str(flow.state)]) == 0
            assert "reloaded: retried hook" in why()
            wait_until(lambda: bool(received.stat().st_size), 60, why)
            assert loops.failed() == ()
            # The others stay as they were.
            assert run(["flow", "reload", flow.name, "--state", str(flow.state)]) == 0 and "nothing has changed" in why()
        finally:
            receiver.kill()
            receiver.wait()
    finally:
        worker.stop()
        running.wait(60)
    assert_duckdb_equals_source(flow)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_destination_under_another_name_is_loaded_anew_into_the_same_place(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    database.execute("insert into steps select generate_series(1, 100)")
    flow = FlowUnderTest(database, tmp_path, snapshot="initial")
    worker = Worker(running_flow(flow.path), flow.state, reload=lambda: running_flow(flow.path), host=shared_spark())
    running = Running("worker", worker.run)
    ledger = Ledger(ledger_address(flow.state))
    try:
        wait_until(worker.is_ready, 120, "the flow does not run")
        wait_until(lambda: [load.state for load in ledger.loads.all(flow.name)] == ["done"], 60, "the first load does not end")
        definition = yaml.safe_load(flow.path.read_text())
        definition["destinations"][0] |= {"name": "again", "start": "backfill"}
        flow.path.write_text(yaml.safe_dump(definition))
        assert worker._loops is not None
        (warehouse,) = [loop for loop in worker._loops if loop.status.name == "warehouse"]
        warehouse.stop()
        warehouse.join(30)
        # What it will never have: rows that were there, and are gone.
        database.execute("delete from steps where n < 50; insert into steps values (1000)")
        wait_until(lambda: flow.checkpoints()["log"] > flow.checkpoints()["warehouse"], 60, "the log does not go on")
        assert run(["flow", "reload", flow.name, "--state", str(flow.state)]) == 0
        database.execute("insert into steps values (1001)")
        wait_until(lambda: [load.state for load in ledger.loads.all(flow.name)] == ["done"] * 2, 60, "no second load")
        wait_until(lambda: set(flow.checkpoints()) == {"warehouse", "log", "again"}, 30, "it does not stream")
    finally:
        worker.stop()
        running.wait(60)
        ledger.close()
    flow.run_out()
    assert_duckdb_equals_source(flow)
