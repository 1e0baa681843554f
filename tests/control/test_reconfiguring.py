"""Reconfiguring: what was wanted of the flow is wanted of it afterwards, whoever acts or is killed meanwhile.

And who asks something of a worker is answered that, and not what somebody else has asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.control import runner
from penstock.control.caller import Caller
from penstock.control.reconfiguring import Reconfiguring
from penstock.control.requests import FlowCreation, FlowUpdate
from penstock.control.resolving import resolve
from penstock.control.service import Service
from penstock.engine.lease import holding
from penstock.engine.resolving import ASKED, DONE
from penstock.errors import TransitionRefused
from tests.control.definitions import definition
from tests.control.test_runner import BareLauncher, running
from tests.processes import wait_until

ANN, BOB = Caller("ann", "admin"), Caller("bob", "operator")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """With a runner that starts workers without engines."""
    monkeypatch.setenv("SHOP_PASSWORD", "hush")
    monkeypatch.setattr(runner, "STRANDED", 2.0, raising=False)
    with Service(tmp_path) as made, running(made, BareLauncher(tmp_path)):
        wait_until(lambda: made.server(ANN).runner is not None, 30)
        yield made


def begun(service: Service, command: str = "start", **labels: str) -> None:
    service.flows.create(ANN, FlowCreation(definition=definition(labels=labels)))
    service.commands.give(BOB, command, "shop", patience=30)  # type: ignore[arg-type]
    wait_until(lambda: service.flows.find(ANN, "shop").state == "running", 60)


def asked(service: Service) -> list[str]:
    return [e.event.partition(" ")[0] for e in service.events(ANN, flow="shop").events if e.event.endswith("asked for")]


def reconfigured(service: Service, **labels: str) -> str | None:
    update = FlowUpdate(definition=definition(labels=labels), why="other labels")
    return service.flows.reconfigure(ANN, "shop", update, None, 30.0).applied


@pytest.mark.slow
def test_a_flow_that_runs_once_is_restarted_to_run_once(service: Service) -> None:
    begun(service, "run", lasts="60")
    assert reconfigured(service, lasts="0.3", refuses="yes") == "restarted"
    wait_until(lambda: service.flows.find(ANN, "shop").wished == "stopped", 60)
    assert asked(service) == ["run", "reload", "stop", "run", "stop"]
    assert service.events(ANN, flow="shop").events[-1].why == "it has run once"


@pytest.mark.slow
def test_a_flow_that_is_to_stop_is_not_revived(service: Service) -> None:
    begun(service, lingers="3")
    service.commands.give(BOB, "stop", "shop")
    assert reconfigured(service, lingers="3", refuses="yes") == "counts from the next start"
    assert asked(service) == ["start", "stop"]
    wait_until(lambda: service.flows.find(ANN, "shop").worker is None, 60)
    assert service.flows.find(ANN, "shop").wished == "stopped"


@pytest.mark.slow
def test_a_definition_that_the_worker_has_refused_is_taken_over_by_the_next_reconfigure(service: Service) -> None:
    begun(service)
    update = FlowUpdate(definition=definition(labels={"refuses": "yes"}))
    assert (service.flows.update(ANN, "shop", update, None).applied or "").startswith("reload refused")
    assert reconfigured(service, refuses="yes") == "restarted"


@pytest.mark.slow
def test_a_pause_is_still_that_of_who_asked_for_it_after_a_restart(service: Service) -> None:
    begun(service)
    service.commands.give(BOB, "pause", "shop", why="an upgrade", patience=30)
    assert reconfigured(service, refuses="yes") == "restarted"
    wish = service.premises.ledger.lifecycle.wish("shop")
    assert (wish.state, wish.who, wish.why, wish.then) == ("paused", "bob", "an upgrade", None)
    wait_until(lambda: service.flows.find(ANN, "shop").state == "paused", 60)


@pytest.mark.parametrize(("command", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_who_pauses_or_stops_it_meanwhile_has_the_last_word(service: Service, command: str, state: str) -> None:
    begun(service)

    def change() -> bool:
        return service.commands.give(BOB, command, "shop", why="now").changed  # type: ignore[arg-type]

    work = Reconfiguring(service.premises, "shop", "ann", None, time.monotonic() + 30)
    said = work.run(change)
    assert said.endswith(f"; it was {state} meanwhile")
    # A worker that has ended is not waited for.
    assert "has not answered" not in said
    wish = service.premises.ledger.lifecycle.wish("shop")
    assert (wish.state, wish.who, wish.why) == (state, "bob", "now")


@pytest.mark.slow
def test_two_at_once_are_done_one_after_the_other(service: Service) -> None:
    begun(service)
    other = Reconfiguring(service.premises, "shop", "bob", None, time.monotonic() + 1)

    def change() -> bool:
        with pytest.raises(TransitionRefused, match="by somebody else"):
            other.run(lambda: True)
        return True

    assert Reconfiguring(service.premises, "shop", "ann", None, time.monotonic() + 30).run(change).startswith("reloaded")
    assert service.flows.find(ANN, "shop").wished == "running"


@pytest.mark.slow
def test_each_of_two_updates_is_told_what_became_of_its_own_definition(service: Service, tmp_path: Path) -> None:
    begun(service)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.flows.update, ANN, "shop", FlowUpdate(definition=definition(labels={"reloads": "2"})), None)
        wait_until((tmp_path / "shop.reloading").exists, 30)
        second = service.flows.update(ANN, "shop", FlowUpdate(definition=definition(labels={"refuses": "yes"})), None)
        assert first.result().applied == "reloaded: all of it"
        assert second.applied == "reload refused: it does not"


def test_who_asks_for_staging_tables_is_answered_with_his_own(service: Service, tmp_path: Path) -> None:
    service.flows.create(ANN, FlowCreation(definition=definition()))
    ledger = service.premises.ledger
    with holding(service.premises.path, "shop", "worker") as lease, ThreadPoolExecutor(2) as pool:
        ledger.take_over("shop", "5ec0ffee", "{}", lease.generation)
        asked = [pool.submit(resolve, "shop", None, tmp_path, None, [table], 30.0, "ann") for table in ("a", "b")]

        def questions() -> dict[str, int]:
            found = [event for event in ledger.lifecycle.events("shop", 50) if event.event == ASKED]
            return {json.loads(event.why or "{}")["tables"][0]: event.id for event in found}

        wait_until(lambda: len(questions()) == 2, 30)
        for table, question in questions().items():
            said = json.dumps([{"table": table}])
            ledger.lifecycle.record("shop", lease.generation, DONE, said, "worker", answers=question)
        assert [one.result() for one in asked] == [[{"table": "a"}], [{"table": "b"}]]


@pytest.mark.slow
def test_a_server_that_is_killed_in_between_leaves_no_flow_paused(service: Service, tmp_path: Path) -> None:
    begun(service)
    script = """
        import os, sys, time
        from pathlib import Path
        from penstock.control.reconfiguring import Reconfiguring
        from penstock.control.service import Service
        with Service(Path(sys.argv[1])) as service:
            Reconfiguring(service.premises, "shop", "ann", None, time.monotonic() + 30).run(lambda: os._exit(9))
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], env=os.environ, check=False)
    assert killed.returncode == 9 and service.flows.find(ANN, "shop").wished == "paused"
    wait_until(lambda: service.flows.find(ANN, "shop").wished == "running", 30)
    wait_until(lambda: service.flows.find(ANN, "shop").state == "running", 30)
    assert service.premises.ledger.lifecycle.wish("shop").who == "ann"
