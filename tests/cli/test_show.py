"""`penstock flow show|list|pause|…` on a state directory in which no worker runs, or one that this test plays."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.cli import backfill
from penstock.cli.app import run
from penstock.control.caller import Caller
from penstock.control.service import Service
from penstock.core.flow import DestinationUse, Flow
from penstock.engine.lease import holding
from penstock.engine.loops import starting_position
from penstock.engine.picture import Picture
from penstock.engine.places import ledger_address
from penstock.engine.reloading import kept
from penstock.engine.status import DestinationStatus, WorkerStatus
from penstock.errors import JournalTrimmed
from penstock.journal.writer import JournalWriter
from penstock.ledger.ledger import Ledger
from penstock.ledger.quarantines import Quarantined

FLOW = Flow.model_validate(
    {
        "name": "shop",
        "source": {"type": "postgres", "options": {"dsn": "postgresql://u:hush@h/d"}},
        "destinations": [{"name": "warehouse", "type": "duckdb"}, {"name": "log", "type": "stdout", "required": False}],
        "config": {"ack_policy": "required"},
    }
)


class Site:
    """A state directory with a flow that stands at 0/3E8, its journal at 0/7D0."""

    def __init__(self, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.state, self._capsys = state, capsys
        journal = JournalWriter(state / "journal" / "shop")
        journal.begin(500)
        journal.publish([], [], 2000)
        journal.close()
        self.ledger = Ledger(ledger_address(state))
        self.generation = self.ledger.take_over("shop", "5ec0ffee", kept(FLOW))
        self.ledger.begin("shop", "warehouse", 1000, self.generation)
        self.ledger.begin("shop", "log", 600, self.generation)

    def __call__(self, *words: str) -> tuple[int, str]:
        code = run(["flow", *words, "--state", str(self.state)])
        shown = self._capsys.readouterr()
        return code, shown.out + shown.err

    def json(self, *words: str) -> Any:
        code, shown = self(*words, "--json")
        assert code == 0, shown
        return json.loads(shown)


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    made = Site(tmp_path, capsys)
    yield made
    made.ledger.close()


def test_without_a_worker_ledger_and_journal_speak(site: Site) -> None:
    site.ledger.lifecycle.record("shop", site.generation, "stopped", None, "worker", "stopped")
    answer = site.json("show", "shop")
    assert (answer["state"], answer["lease"], answer["journal"]["mark"]) == ("stopped", None, "0/7D0")
    places = {d["name"]: (d["position"], d["lag_bytes"], d["state"]) for d in answer["destinations"]}
    assert places == {"warehouse": ("0/3E8", 1000, "idle"), "log": ("0/258", 1400, "idle")}
    assert answer["acknowledgement"]["allowed"] == "0/3E8" and answer["acknowledgement"]["held_by"] == ["warehouse"]
    code, shown = site("show", "shop")
    assert code == 0 and "none runs" in shown and "warehouse holds it back" in shown and "hush" not in shown


def test_a_running_worker_s_picture_is_shown_with_what_troubles_it(site: Site) -> None:
    status = DestinationStatus("warehouse", "duckdb", position=1000, lag_seconds=3.0, rows={"public.a": 12})
    status.become("retrying", {"code": "destination_unwritable", "message": "locked", "remedy": "Unlock it."}, time.time() + 20)
    moment = WorkerStatus("shop", 10, 2000, 900, [status, DestinationStatus("log", "stdout", "ok", 600)])
    with holding(ledger_address(site.state), "shop", "worker") as lease:
        site.ledger.take_over("shop", "5ec0ffee", kept(FLOW), lease.generation)
        Picture(site.state / "run" / "shop", lease.generation, lambda: moment).look()
        answer = site.json("show", "shop")
        assert answer["state"] == "running" and answer["lease"]["generation"] == lease.generation
        assert answer["acknowledgement"]["told"] == "0/384"
        code, shown = site("show", "shop")
        assert code == 0 and "destination_unwritable: locked" in shown and "→ Unlock it." in shown and "try 1 in" in shown
        listed = site.json("list")
        assert [one["flow"] for one in listed] == ["shop"] and "retrying warehouse" in site("list")[1]
        status.become("failed", status.error)
        Picture(site.state / "run" / "shop", lease.generation, lambda: moment).look()
    # The picture of a worker that is gone is not believed, except for what has failed.
    assert [d["state"] for d in site.json("show", "shop")["destinations"]] == ["failed", "idle"]


def test_a_destination_at_the_journal_s_end_has_no_lag_and_one_behind_has_its_own(site: Site) -> None:
    reached = DestinationStatus("warehouse", "duckdb", "ok", 2000, lag_seconds=3.0)
    behind = DestinationStatus("log", "stdout", "ok", 600, lag_seconds=4.0)
    moment = WorkerStatus("shop", 10, 2000, 900, [reached, behind])
    with holding(ledger_address(site.state), "shop", "worker") as lease:
        site.ledger.take_over("shop", "5ec0ffee", kept(FLOW), lease.generation)
        Picture(site.state / "run" / "shop", lease.generation, lambda: moment).look()
        found = {d["name"]: (d["lag_bytes"], d["lag_seconds"]) for d in site.json("show", "shop")["destinations"]}
        assert found == {"warehouse": (0, 0.0), "log": (1400, 4.0)}
        behind.position = 2000
        Picture(site.state / "run" / "shop", lease.generation, lambda: moment).look()
        with Service(site.state) as service:
            flow = service.flows.find(Caller("eve", "viewer"), "shop")
            (listed,) = service.flows.page(Caller("eve", "viewer")).flows
        assert [d.lag_seconds for d in flow.destinations] == [0.0, 0.0] and flow.lag_seconds == listed.lag_seconds == 0.0


def test_commands_without_a_worker_hold_for_the_next_one(site: Site) -> None:
    code, shown = site("pause", "shop", "--why", "upgrade")
    assert code == 0 and "stays paused" in shown
    assert site.json("show", "shop")["wish"]["why"] == "upgrade"
    assert site("start", "shop")[0] == 1
    assert site("resume", "shop")[0] == 0 and "already" in site("resume", "shop")[1]
    assert site("stop", "shop")[0] == 0
    code, shown = site("pause", "shop")
    assert code == 1 and "transition_refused" in shown and "penstock flow start" in shown
    code, shown = site("reload", "shop")
    assert code == 1 and "no worker runs" in shown
    assert site("start", "shop")[0] == 0 and site("show", "other")[0] == 1


def test_a_directory_without_a_ledger_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["show", "shop"], ["pause", "shop"]):
        assert run(["flow", *words, "--state", str(tmp_path / "none")]) == 1
        assert "flow_unknown" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_destination_is_rewound_as_far_as_the_journal_goes_and_only_where_it_has_an_effect(site: Site) -> None:
    def rewound(destination: str, to: str) -> tuple[int, str]:
        return site("rewind", "shop", "--destination", destination, "--to", to)

    with holding(ledger_address(site.state), "shop", "worker"):
        assert "flow_running" in rewound("log", "oldest")[1]
    for destination, to, code in (
        ("log", "0/100", "journal_trimmed"),
        ("log", "0/FFF", "rewind_refused"),
        ("log", "yesterday", "rewind_refused"),
        ("nowhere", "oldest", "flow_unknown"),
    ):
        ended, shown = rewound(destination, to)
        assert ended == 1 and f"{code}: " in shown, shown
    assert site.ledger.checkpoints("shop") == {"warehouse": 1000, "log": 600}
    assert rewound("log", "oldest")[0] == 0 and rewound("warehouse", "0/258")[0] == 0
    assert site.ledger.checkpoints("shop") == {"warehouse": 600, "log": 500}
    assert any(e["event"] == "rewound" for e in site.json("show", "shop")["events"])


def quarantined(site: Site, table: str, position: int) -> Quarantined:
    row = Quarantined("shop", "warehouse", "public", table, "schema_refused", f"{table}: no", "Mend it.", position, 0)
    site.ledger.quarantines.admit(row, site.generation)
    site.ledger.quarantines.count("shop", "warehouse", site.generation, 1, {("public", table): 1234})
    return row


def test_a_quarantined_table_is_shown_with_its_reason_what_it_missed_and_the_way_out(site: Site) -> None:
    quarantined(site, "orders", 1000)
    code, shown = site("show", "shop")
    assert code == 0 and "warehouse: public.orders quarantined: schema_refused: orders: no" in shown
    assert "1,234 changes passed over since 0/3E8" in shown
    assert "Mend it. Then `penstock flow release shop --destination warehouse --table public.orders`." in shown
    assert "1 quarantined warehouse" in site("list")[1]
    (row,) = site.json("show", "shop")["destinations"][0]["quarantined"]
    assert (row["table"], row["state"], row["passed"], row["position"]) == ("orders", "quarantined", 1234, "0/3E8")


def test_a_release_is_refused_when_the_journal_no_longer_has_what_was_missed(site: Site) -> None:
    def release(table: str, *more: str) -> tuple[int, str]:
        return site("release", "shop", "--destination", "warehouse", "--table", f"public.{table}", *more)

    quarantined(site, "orders", 1000)
    quarantined(site, "lines", 400)
    assert "flow_unknown" in release("nothing")[1]
    code, shown = release("lines")
    assert code == 1 and "table_gap" in shown and "--skip-missed" in shown and "begins at 0/1F4" in shown
    code, shown = release("lines", "--skip-missed")
    assert code == 0 and "1234 changes since 0/190 are missing" in shown
    code, shown = release("orders")
    assert code == 0 and "is brought 1234 changes since 0/3E8" in shown
    assert [(row.table, row.state) for row in site.ledger.quarantines.all("shop")] == [("orders", "asked")]
    assert release("orders")[0] == 0
    (row,) = site.ledger.quarantines.all("shop")
    site.ledger.quarantines.catch_up(row, site.generation, 2, 1000, 0)
    for more in ((), ("--skip-missed",)):
        assert "transition_refused" in release("orders", *more)[1]
    assert [e["event"] for e in site.json("show", "shop")["events"]][-2:] == ["release", "release"]


def test_a_rewind_to_before_a_quarantine_widens_what_the_table_misses(site: Site) -> None:
    row = dataclasses.replace(quarantined(site, "orders", 1000), destination="log", position=600)
    site.ledger.quarantines.admit(row, site.generation)
    assert site("rewind", "shop", "--destination", "log", "--to", "0/1F4")[0] == 0
    assert [(r.destination, r.position) for r in site.ledger.quarantines.all("shop")] == [("log", 500), ("warehouse", 1000)]


@pytest.mark.parametrize(("start", "expected"), [("oldest", 500), ("now", 2000), ("0/258", 600), ("0/1F4", 500)])
def test_a_new_destination_starts_where_it_is_told(site: Site, start: str, expected: int) -> None:
    use = DestinationUse(name="new", type="stdout", start=start)
    assert starting_position(use, 500, site.state / "journal" / "shop") == expected


@pytest.mark.parametrize("start", ["0/100", "0/FFFF"])
def test_a_start_that_the_journal_does_not_have_is_refused(site: Site, start: str) -> None:
    with pytest.raises(JournalTrimmed, match="0/1F4 to 0/7D0"):
        starting_position(DestinationUse(name="new", type="stdout", start=start), 500, site.state / "journal" / "shop")


def test_a_start_that_is_no_position_is_a_problem_of_the_file() -> None:
    with pytest.raises(ValidationError, match="oldest"):
        DestinationUse(name="new", type="stdout", start="yesterday")


def test_a_load_that_is_not_over_is_shown_with_its_flow(site: Site) -> None:
    number = site.ledger.loads.request("shop", "backfill", {"tables": ["public.a"]}, "ann")
    assert f"load      {number}, backfill: requested" in site("show", "shop")[1]
    content: dict[str, dict[str, int]] = {"chunk": {}, "table": {}}
    planned = [{"schema": "public", "table": "a", "rows": 10, "bytes": 100, "content": content}]
    load = site.ledger.loads.open("shop")[0]
    site.ledger.loads.plan(load, site.generation, planned, snapshot=None, position=0, low=0)
    assert f"load      {number}, backfill of 1 table: reading, 0.0 % read" in site("show", "shop")[1]
    assert [one["id"] for one in site.json("show", "shop")["loads"]] == [number]
    with Service(site.state) as service:
        (found,) = service.flows.find(Caller("eve", "viewer"), "shop").loads
    assert (found.id, found.kind, found.state, found.table_count) == (number, "backfill", "reading", 1)


def test_a_backfill_on_a_condition_that_says_nothing_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backfill", "shop", "--tables", "a", "--where", " ", "--state", str(site.state)]) == 2
    assert "leave it out to load all rows" in capsys.readouterr().err
    assert site.ledger.loads.open("shop") == []


def test_a_load_whose_flow_has_failed_is_not_waited_for(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "PATIENCE", 0.1)
    number = site.ledger.loads.request("shop", "backfill", {"tables": ["public.a"]}, "ann")
    site.ledger.lifecycle.record("shop", site.generation, "failed", "decode_failed: odd → Look.", "ann", "failed")
    assert run(["backfill", "show", "shop", str(number), "--wait", "--state", str(site.state)]) == 1
    shown = capsys.readouterr()
    assert "has failed" in shown.err and "decode_failed: odd" in shown.err
