"""Several clients at once, workers killed at random: the rules of the lifecycle hold, and every answer was true."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.api.grpc.serving import GrpcServing
from penstock.api.serving import Serving
from penstock.api.settings import Settings
from penstock.client import Client
from penstock.control.launching import Launcher, ProcessLauncher
from penstock.control.requests import FlowCreation
from penstock.control.runner import Runner
from penstock.control.service import Service
from tests.conftest import Database
from tests.control.definitions import definition
from tests.control.test_runner import BareLauncher, shop
from tests.control.walks import ANN, Walk
from tests.processes import wait_until

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "") or int.from_bytes(os.urandom(4)))
MINUTES = float(os.environ.get("PENSTOCK_CHAOS_MINUTES", "5"))
PATIENT = {"give_up_policy": "never", "retry": {"base": "50ms", "max": "200ms"}}


@contextmanager
def walking(state: Path, launcher: Launcher, definitions: list[dict[str, Any]]) -> Iterator[tuple[Walk, list[Any]]]:
    """Two servers on one ledger, each with a runner, and clients of both over REST and gRPC."""
    with Service(state) as one, Service(state) as two:
        faces: list[Serving | GrpcServing] = [
            Serving(one, Settings(port=0)),
            GrpcServing(one, Settings(port=0)),
            GrpcServing(two, Settings(port=0)),
        ]
        runners = [Runner(one.premises, launcher), Runner(two.premises, launcher)]
        for face in faces:
            face.start()
        for runner in runners:
            runner.start()
        for each in definitions:
            one.flows.create(ANN, FlowCreation(definition=each))
        try:
            walk = Walk(one, [each["name"] for each in definitions], SEED)
            yield walk, [lambda face=face: Client(face.url) for face in faces]
        except AssertionError as error:
            error.add_note(f"PENSTOCK_TEST_SEED={SEED}")
            raise
        finally:
            for runner in runners:
                runner.close()
            for face in faces:
                face.close()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [12.0, pytest.param(MINUTES * 60, marks=pytest.mark.chaos)])
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_every_answer_is_true_and_no_two_workers_write(seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hush")
    definitions = [definition(name, config=PATIENT) for name in ("one", "two")]
    with walking(tmp_path, BareLauncher(tmp_path), definitions) as (walk, clients):
        walk.run(clients, seconds, 0.7)
        for flow in walk.flows:
            # On a busy machine a walk may end before any of a flow's workers came to write.
            walk.service.commands.give(ANN, "stop", flow, why="from wherever it is", patience=60)
            walk.service.commands.give(ANN, "start", flow, why="to be seen")
            written = tmp_path / f"{flow}.written"
            wait_until(lambda written=written: written.exists() and written.read_text() != "", 60)  # type: ignore[misc]
        walk.settle()
        walk.check()
        for flow in walk.flows:
            lines = (tmp_path / f"{flow}.written").read_text().splitlines()
            assert not [line for line in lines if not line.isdigit()], f"{flow} was written by two at once"
            assert [int(line) for line in lines] == sorted(map(int, lines)), f"{flow}: an older one wrote later"
            walk.service.commands.give(ANN, "start", flow)
            wait_until(lambda flow=flow: walk.service.flows.find(ANN, flow).state == "running", 30)  # type: ignore[misc]
        assert walk.kills > 1 and len(walk.said) > 20, (walk.kills, len(walk.said))


@pytest.mark.chaos
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_workers_with_engines_walk_too_and_lose_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DSN", database.dsn)
    database.execute("create table orders (id int primary key, v text)")
    name = f"w_{database.name}"
    sent = shop(database, tmp_path, name, config=PATIENT)
    with walking(tmp_path / "state", ProcessLauncher(tmp_path / "state"), [sent]) as (walk, clients):
        walk.run(clients[1:], MINUTES * 60, 20.0)
        walk.settle()
        walk.check()
        database.execute("insert into orders select g, 'x' from generate_series(1, 100) g")
        walk.service.commands.give(ANN, "start", name, why="the end")

        def rows() -> int:
            return sum(d.rows or 0 for d in walk.service.flows.find(ANN, name).destinations)

        wait_until(lambda: rows() >= 100, 180)
        walk.settle()
        walk.service.flows.delete(ANN, name)
    import duckdb

    with duckdb.connect(str(tmp_path / f"{name}.duckdb"), read_only=True) as found:
        assert found.execute("select count(*), count(distinct id) from public.orders").fetchall() == [(100, 100)]
