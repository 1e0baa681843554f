"""The runner: what is to run runs, once, and again when its worker is gone; what cannot run says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from penstock.api.serving import Serving
from penstock.api.settings import Settings
from penstock.cli.app import run
from penstock.client import Client
from penstock.control.answers import FlowSummary
from penstock.control.caller import Caller
from penstock.control.embedding import EmbeddedLauncher
from penstock.control.launching import Launcher, ProcessLauncher, ProcessRun
from penstock.control.requests import FlowCreation, FlowUpdate
from penstock.control.runner import LOOK, Runner
from penstock.control.service import Service
from penstock.engine.ending import LOADED
from penstock.engine.session import SparkHost
from penstock.errors import RevisionStale
from penstock.observe import log
from tests.conftest import Database
from tests.control.definitions import definition
from tests.processes import wait_until

ANN = Caller("ann", "admin")
PLANTED = "pl4nted-s3cret"


@contextmanager
def running(service: Service, launcher: Launcher) -> Iterator[Runner]:
    runner = Runner(service.premises, launcher)
    runner.start()
    try:
        yield runner
    finally:
        runner.close()


def summary(service: Service, name: str = "shop") -> FlowSummary:
    entry = service.premises.ledger.register.find(name)
    assert entry is not None
    return service.flows.summary(entry)


class Counting(ProcessLauncher):
    """Counts what it launches."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self.launched: list[str] = []

    def launch(self, flow: str, *, once: bool) -> Any:
        self.launched.append(flow)
        return super().launch(flow, once=once)


class BareLauncher(ProcessLauncher):
    """Processes that have no engine, and so begin in a second."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self._place = state

    def launch(self, flow: str, *, once: bool) -> ProcessRun:
        command = [sys.executable, "-m", "tests.control.bare_worker", flow, str(self._place), "once" if once else "on"]
        with (self._place / f"{flow}.out").open("ab") as output:
            return ProcessRun(subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True))


def test_a_flow_whose_references_lead_nowhere_fails_with_the_reason_until_somebody_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    with Service(tmp_path) as service, running(service, launcher := Counting(tmp_path)):
        service.flows.create(ANN, FlowCreation(definition=definition(), start=True))
        wait_until(lambda: summary(service).state == "failed", 60)
        found = summary(service)
        assert found.health == "stalled" and "flow_invalid" in (found.reason or "") and "SHOP_PASSWORD" in (found.reason or "")
        assert not launcher.launched
        before = service.newest_event(ANN)
        assert service.commands.give(ANN, "start", "shop", why="again", patience=30).settled is False
        assert [e.event for e in service.events(ANN, flow="shop", after=before).events] == ["start asked for", "failed"]
        capsys.readouterr()
        assert run(["flow", "start", "shop", "--state", str(tmp_path)]) == 1
        said = capsys.readouterr().out
        assert "has failed: flow_invalid" in said and "SHOP_PASSWORD" in said


def test_what_a_bad_reference_stands_for_is_told_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DSN", f"{PLANTED} is no dsn")
    sent = definition()
    sent["source"]["options"] = {"dsn": "${env:SHOP_DSN}", "start_lsn": "${env:SHOP_DSN}"}
    with Service(tmp_path) as service, running(service, ProcessLauncher(tmp_path)):
        service.catalog.validate(ANN, sent)
        sent["source"]["options"].pop("start_lsn")
        service.flows.create(ANN, FlowCreation(definition=sent, start=True))
        wait_until(lambda: summary(service).state == "failed", 60)
        assert PLANTED not in service.flows.find(ANN, "shop").model_dump_json()
    assert PLANTED.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.slow
def test_of_two_servers_on_one_ledger_one_runs_flows_and_the_other_takes_over(tmp_path: Path) -> None:
    with Service(tmp_path) as one, Service(tmp_path) as two:
        first, second = Counting(tmp_path), Counting(tmp_path)
        a, b = Runner(one.premises, first), Runner(two.premises, second)
        a.start()
        wait_until(lambda: one.server(ANN).runner is not None, 30)
        b.start()
        sent = definition(config={"retry": {"max_attempts": 1}})
        os.environ["SHOP_PASSWORD"] = PLANTED
        try:
            two.flows.create(ANN, FlowCreation(definition=sent, start=True))
            # Nobody listens at the source's address: the worker fails, in time, and was given one try.
            wait_until(lambda: summary(one).state == "failed", 120)
            assert "source_unreachable" in (summary(one).reason or "") and first.launched == ["shop"] and not second.launched
            a.close()
            one.commands.give(ANN, "start", "shop")
            wait_until(lambda: second.launched == ["shop"], 60)
            assert first.launched == ["shop"]
        finally:
            os.environ.pop("SHOP_PASSWORD")
            a.close()
            b.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["signal", "server"])
def test_a_run_once_that_is_cut_short_is_run_again(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PLANTED)

    def begun() -> bool:
        lease = service.premises.leases.find("shop")
        return lease is not None and not lease.is_free() and summary(service).state == "running"

    with Service(tmp_path) as service:
        service.flows.create(ANN, FlowCreation(definition=definition(labels={"lasts": "60"}, config={"retry": {"base": "50ms"}})))
        service.commands.give(ANN, "run", "shop")
        with running(service, BareLauncher(tmp_path)):
            wait_until(begun, 60)
            lease = service.premises.leases.find("shop")
            assert lease is not None
            if how == "signal":
                os.kill(lease.holder.pid, signal.SIGTERM)
                wait_until(lambda: begun() and _generation(service, "shop") > lease.generation, 60)
        assert summary(service).wished == "once", "the server's end is not the run's"
        update = FlowUpdate(definition=definition(labels={"lasts": "0"}))
        service.flows.update(ANN, "shop", update, None)
        with running(service, BareLauncher(tmp_path)):
            wait_until(lambda: summary(service).wished == "stopped", 60)
        assert service.events(ANN, flow="shop").events[-1].why == "it has run once"
        assert summary(service).reason == "drained"


def _launched(service: Service, name: str = "shop") -> int:
    return sum(e.event == "started" for e in service.events(ANN, flow=name).events)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "runs_again"), [("worker_failed", True), ("source_rights", False)])
def test_a_flow_whose_worker_failed_by_a_surprise_is_started_again(
    code: str, runs_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PLANTED)
    labels, config = {"fails": code, "lasts": "60"}, {"retry": {"base": "50ms"}}
    with Service(tmp_path) as service, running(service, BareLauncher(tmp_path)):
        service.flows.create(ANN, FlowCreation(definition=definition(labels=labels, config=config), start=True))
        wait_until(lambda: any(e.event == "failed" for e in service.events(ANN, flow="shop").events), 60)
        if runs_again:
            wait_until(lambda: summary(service).state == "running" and _launched(service) == 2, 60)
        else:
            time.sleep(3 * LOOK)
            assert summary(service).state == "failed" and _launched(service) == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["start", "run"])
def test_a_flow_that_only_loads_is_stopped_once_its_tables_are_loaded(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PLANTED)
    with Service(tmp_path) as service, running(service, BareLauncher(tmp_path)):
        service.flows.create(ANN, FlowCreation(definition=definition(labels={"ends": LOADED})))
        for runs in (1, 2):
            service.commands.give(ANN, command, "shop", patience=0)
            wait_until(lambda: summary(service).wished == "stopped", 60)
            assert service.events(ANN, flow="shop").events[-1].why == "its tables are loaded"
            assert (summary(service).state, summary(service).reason, _launched(service)) == ("stopped", LOADED, runs)


@pytest.mark.slow
def test_a_run_that_was_drained_by_hand_stops_no_flow_that_is_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PLANTED)
    with Service(tmp_path) as service:
        service.flows.create(ANN, FlowCreation(definition=definition(labels={"lasts": "0.1"}), start=True))
        assert BareLauncher(tmp_path).launch("shop", once=True)._process.wait(60) == 0
        assert (summary(service).state, summary(service).reason) == ("stopped", "drained")
        with running(service, BareLauncher(tmp_path)):
            wait_until(lambda: summary(service).state == "running", 60)
        assert summary(service).wished == "running"


def shop(database: Database, directory: Path, name: str, **more: Any) -> dict[str, Any]:
    path = str(directory / f"{name}.duckdb")
    return {
        "name": name,
        "source": {"type": "postgres", "options": {"dsn": "${env:SHOP_DSN}", "publication_tables": ["public.orders"]}},
        "destinations": [{"name": "warehouse", "type": "duckdb", "options": {"path": path}, "batch": {"max_wait": "20ms"}}],
        **more,
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["process", "embedded"])
def test_a_flow_is_run_steered_restarted_changed_and_deleted_through_the_server(
    kind: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkHost
) -> None:
    spark.stop()  # the launcher has one of its own, and a process can have one
    parts, role = urlsplit(database.dsn), f"r_{database.name}"
    where = parts.netloc.rpartition("@")[2]
    monkeypatch.setenv("SHOP_DSN", urlunsplit(parts._replace(netloc=f"{role}:{PLANTED}@{where}")))
    database.execute(f"create role {role} superuser login password '{PLANTED}'; create table orders (id int primary key, v text)")
    state = tmp_path / "state"
    answers: list[str] = []
    log.configure("info", state / "logs" / "server.log", console=False)
    with Service(state, logs=True) as service:
        launcher: Launcher = ProcessLauncher(state) if kind == "process" else EmbeddedLauncher(state)
        serving = Serving(service, Settings(port=0))
        serving.start()
        try:
            with Client(serving.url) as plane, running(service, launcher):
                _walk(plane, service, database, tmp_path, kind, answers)
        finally:
            serving.close()
            log.configure(console=False)
    kept = b"".join(path.read_bytes() for path in state.rglob("*") if path.is_file())
    assert PLANTED.encode() not in kept and PLANTED not in "".join(answers)
    assert not database.rows("select 1 from pg_replication_slots where database = %s", database.name)
    database.execute(f"drop owned by {role}; drop role {role}")


def _generation(service: Service, name: str) -> int:
    entry = service.premises.ledger.register.find(name)
    assert entry is not None
    return entry.generation


def _walk(plane: Client, service: Service, database: Database, tmp_path: Path, kind: str, answers: list[str]) -> None:
    name = f"s_{database.name}"
    made = plane.create_flow(shop(database, tmp_path, name))
    started = plane.command("start", name, why="go", wait=60)
    answers += [made.model_dump_json(), started.model_dump_json()]
    assert started.settled and started.state == "running" and started.worker, started

    def delivered(count: int, destination: str = "warehouse") -> bool:
        database.execute("insert into orders select coalesce(max(id), 0) + 1, 'x' from orders")
        there = {d.name: d for d in plane.flow(name).destinations}
        return destination in there and (there[destination].rows or 0) >= count

    wait_until(lambda: delivered(3), 300)
    assert plane.flow(name).health == "ok"
    if kind == "process":
        lease = service.premises.leases.find(name)
        assert lease is not None
        os.kill(lease.holder.pid, signal.SIGKILL)
        wait_until(lambda: (found := service.premises.leases.find(name)) is not None and found.generation > lease.generation, 30)
        wait_until(lambda: plane.flow(name).state == "running", 60)
    changed = shop(database, tmp_path, name)
    changed["destinations"].append({"name": "log", "type": "files", "options": {"path": str(tmp_path / f"{name}-log")}})
    updated = plane.reconfigure_flow(name, changed, etag=made.etag, why="a log too")
    assert updated.applied == "reloaded: added log" and updated.state == "running", updated
    asked = [e.event for e in plane.events(flow=name).events if e.event.endswith("asked for")]
    assert asked[-3:] == ["pause asked for", "reload asked for", "resume asked for"], asked
    wait_until(lambda: delivered(1, "log"), 120)
    with pytest.raises(RevisionStale):
        plane.reconfigure_flow(name, changed, etag=made.etag)
    assert plane.command("pause", name, wait=30).state == "paused"
    # A source's options are what a worker is made from: it is restarted, and stays paused as it was.
    changed["source"]["options"]["heartbeat_interval"] = "7s"
    generation = _generation(service, name)
    updated = plane.reconfigure_flow(name, changed, why="heartbeat")
    assert updated.applied == "restarted" and updated.wished == "paused", updated
    wait_until(lambda: _generation(service, name) > generation and plane.flow(name).state == "paused", 120)
    assert plane.command("resume", name, wait=60).state == "running"
    answers += [plane.flow(name).model_dump_json(), plane.doctor(name).model_dump_json(), plane.events().model_dump_json()]
    stopped = plane.command("stop", name, wait=60)
    assert stopped.settled and stopped.state == "stopped"
    assert plane.command("run", name).wished == "once"
    wait_until(lambda: plane.flow(name).wished == "stopped" and plane.flow(name).worker is None, 120)
    assert {c.destination for c in plane.checkpoints(name).checkpoints} == {"warehouse", "log"}
    cleaned = plane.clean_up_flow(name)
    assert [one.kind for one in cleaned.removed] and not cleaned.state_removed and plane.flow(name).state == "stopped"
    assert not database.rows("select 1 from pg_replication_slots where database = %s", database.name)
    assert plane.clean_up_flow(name, remove_state=True).state_removed and plane.flow(name).state == "created"
    assert plane.clean_up_flow(name).removed == [] and plane.checkpoints(name).checkpoints == []
    plane.delete_flow(name, why="over")
    answers += [plane.audit().model_dump_json(), plane.events().model_dump_json()]
