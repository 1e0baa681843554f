"""`penstock flow resolve-staging`: with a worker, which does it between two epochs, and without one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import duckdb
import pyarrow as pa
import pytest
import yaml

from penstock.cli.app import run
from penstock.cli.files import running_flow
from penstock.core.batch import Op
from penstock.core.connectors import find
from penstock.core.epoch import Epoch
from penstock.core.flow import Flow
from penstock.destinations.base import Place
from penstock.engine.loops import Loops
from penstock.engine.places import ledger_address
from penstock.engine.reloading import kept
from penstock.engine.resolving import Resolving
from penstock.engine.steering import Steering
from penstock.engine.worker import Worker
from penstock.ledger.ledger import Ledger
from tests.batches import Change, batch, table
from tests.conftest import Database
from tests.flows import FlowUnderTest, wait_until
from tests.sparks import shared_spark

STEPS = table({"n": pa.int32()}, key=("n",), name="steps")


def stage(flow: str, path: Path, options: dict[str, Any]) -> None:
    """A load that has ended and was not resolved: its worker was killed in between."""
    card = find("destination", "duckdb")
    given = card.options.model_validate(options)
    place = Place(flow, "warehouse", path / "staged")
    destination = card.load("destination")(place, given)
    destination.prepare([STEPS])
    destination.begin_load("first", [("public", "steps")])
    epoch = Epoch(flow, "warehouse", "src1", 1, 0, 1, 1, 1)
    rows = [Change(Op.SNAPSHOT, {"n": n}, position=1, ordinal=n) for n in (1, 2)]
    destination.commit(epoch, [card.load("writer")(place, given).write(epoch, 0, iter([batch(STEPS, rows)]))])
    with destination._fenced() as store:
        destination._book.end(store, "first", [("public", "steps")])
    destination.close()


def steps(path: str) -> list[int]:
    with duckdb.connect(path, read_only=True) as connection:
        return [row[0] for row in connection.execute("select n from public.steps order by n").fetchall()]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[dict[str, Any]]:
    options = {"path": str(tmp_path / "shop.duckdb"), "batch_mode": "staging", "batch_resolution": "append"}
    definition = {
        "name": "shop",
        "source": {"type": "postgres", "options": {"dsn": "postgresql://u@h/d"}},
        "destinations": [{"name": "warehouse", "type": "duckdb", "options": options}, {"name": "out", "type": "stdout"}],
    }
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(definition))
    ledger = Ledger(ledger_address(tmp_path))
    ledger.take_over("shop", "5ec0ffee", kept(Flow.model_validate(definition)))
    yield options
    ledger.close()


def test_without_a_worker_the_command_does_it_by_itself(
    site: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage("shop", tmp_path, site)
    words = ["flow", "resolve-staging", "--state", str(tmp_path)]
    assert run([*words, "shop"]) == 1 and "Give the flow's file" in capsys.readouterr().err
    file = str(tmp_path / "shop.yaml")
    assert run([*words, file, "--tables", "public.other"]) == 0 and "nothing is staged" in capsys.readouterr().out
    assert run([*words, file, "--destination", "nowhere"]) == 1 and "flow_unknown" in capsys.readouterr().err
    assert run([*words, file, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["tables"]
    assert (one["destination"], one["table"], one["outcome"], one["rows"]) == ("warehouse", "steps", "appended", 2)
    assert steps(site["path"]) == [1, 2]
    assert run([*words, file]) == 0 and "nothing is staged" in capsys.readouterr().out


class NoLoops(list[Any]):
    """A worker without destinations, which has resolved everything at once."""

    destinations: ClassVar[dict[str, Any]] = {}


def test_an_answer_waits_for_a_ledger_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ledger.sqlite.PATIENCE", 0.1)
    with contextlib.closing(Ledger(ledger_address(tmp_path))) as ledger:
        generation = ledger.take_over("shop", "5ec0ffee", "{}")
        steering = Steering(ledger, "shop", generation, lambda: "", 0)
        resolving, loops = Resolving(ledger, "shop", steering.record, 0), cast(Loops, NoLoops())
        resolving.begin(loops, {}, 7)
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            resolving.look(loops)
            assert ledger.lifecycle.events("shop") == []
        steering.look(loops)
        assert [(e.event, e.why, e.answers) for e in ledger.lifecycle.events("shop")] == [("staging resolved", "[]", 7)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_running_worker_does_it_between_two_epochs(
    flow: FlowUnderTest, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    definition = yaml.safe_load(flow.path.read_text())
    options = definition["destinations"][0]["options"]
    options |= {"batch_mode": "staging", "batch_resolution": "append"}
    flow.path.write_text(yaml.safe_dump(definition))
    stage(flow.name, flow.directory, options)
    process = flow.start()
    database.execute("insert into steps values (3)")
    wait_until(lambda: bool(flow.checkpoints()), 120, flow.output)
    flow.wait_for_progress(120)
    assert run(["flow", "resolve-staging", flow.name, "--state", str(flow.state), "--json"]) == 0, flow.output()
    (one,) = json.loads(capsys.readouterr().out)["tables"]
    assert (one["outcome"], one["rows"]) == ("appended", 2)
    process.terminate()
    assert process.wait(60) == 0, flow.output()
    assert steps(options["path"]) == [1, 2, 3]


@pytest.mark.timeout(300)
def test_a_run_may_resolve_what_is_staged_or_end_with_its_loads(flow: FlowUnderTest, database: Database) -> None:
    definition = yaml.safe_load(flow.path.read_text())
    options = definition["destinations"][0]["options"]
    options |= {"batch_mode": "staging", "batch_resolution": "append"}
    flow.path.write_text(yaml.safe_dump(definition))
    stage(flow.name, flow.directory, options)
    database.execute("insert into steps values (3)")
    Worker(running_flow(flow.path), flow.state, host=shared_spark(), resolves=True).run(1)
    assert steps(options["path"]) == [1, 2, 3]
    with duckdb.connect(options["path"]) as connection:
        connection.execute("delete from public.steps where n = 3")
    assert run(["backfill", flow.name, "--tables", "public.steps", "--state", str(flow.state)]) == 0
    Worker(running_flow(flow.path), flow.state, host=shared_spark(), loads_only=True).run()
    assert steps(options["path"]) == [1, 2, 3]
