"""The loops of a worker: what they say before they have run, and a change that comes to nothing half-way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.core.flow import Flow
from penstock.engine import lease as leasing
from penstock.engine.lease import HeldLease
from penstock.engine.loop import DestinationLoop
from penstock.engine.loops import Beginning, Loops, Surroundings
from penstock.engine.places import ledger_address
from penstock.engine.session import SparkHost
from penstock.errors import (
    DestinationRefused,
    DestinationUnreachable,
    JournalFull,
    JournalTrimmed,
    LedgerUnreachable,
    PenstockError,
    ReloadUnfinished,
)
from penstock.ledger.ledger import Ledger
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.engine.test_planner import journal
from tests.flows import wait_until
from tests.processes import reading


def _flow(directory: Path, *names: str) -> Flow:
    destinations = [{"name": name, "type": "files", "options": {"path": str(directory / name)}} for name in names]
    return Flow.model_validate(
        {"name": "shop", "source": {"type": "postgres", "options": {"dsn": "x"}}, "destinations": destinations}
    )


class _Site(NamedTuple):
    loops: Loops
    ledger: Ledger
    lease: HeldLease
    directory: Path


@pytest.fixture
def site(tmp_path: Path, spark: SparkHost) -> Iterator[_Site]:
    address = ledger_address(tmp_path / "state")
    ledger, lease = Ledger(address), leasing.take(address, "shop", "worker")
    assert lease is not None
    ledger.take_over("shop", "source", "{}", lease.generation)
    source = PostgresSource("shop", PostgresOptions(dsn="postgresql://nowhere"))
    loops = Loops(_flow(tmp_path, "log"), Surroundings(tmp_path / "state", source, spark, ledger, lease, lambda: None))
    yield _Site(loops, ledger, lease, tmp_path)
    loops.close()
    ledger.close()
    lease.give_up()


def test_a_paused_loop_that_has_never_run_says_what_a_table_has_still_to_catch_up_with(site: _Site) -> None:
    generation = site.lease.generation
    site.ledger.loads.begin("shop", generation, "table", {"names": []}, "test", {"log": [("public", "orders")]}, 100)
    site.ledger.begin("shop", "log", 500, generation)
    site.loops.start(Beginning("source", 1, ()), paused=True)
    wait_until(site.loops.are_quiet, 30, "the loop does not pause")
    assert site.loops.checkpoints()[1] == {"log": 100}
    assert [loop.needed() for loop in site.loops] == [100]


def test_tables_whose_load_ended_while_their_destination_was_out_of_the_flow_are_loaded_anew(site: _Site) -> None:
    generation, loads = site.lease.generation, site.ledger.loads
    first = loads.begin("shop", generation, "first", {}, "test", {"log": [("public", "orders")], "other": [("public", "lines")]})
    site.ledger.begin("shop", "log", 500, generation)
    site.ledger.keep_destinations("shop", ["other"], generation)
    (found,) = loads.open("shop")
    loads.become(found, generation, "done")
    for _ in range(2):
        site.loops.start(Beginning("source", 1, ()), paused=True)
        (again,) = loads.open("shop")
        assert (again.kind, again.state, again.spec["names"]) == ("table", "requested", [["public", "orders"]])
        assert again.takes("log") and not again.takes("other")
        assert [(e.destination, e.load, e.state) for e in loads.entries("shop", "log")] == [("log", again.id, "loading")]
        assert site.loops.checkpoints()[1] == {"log": 500} and [loop.needed() for loop in site.loops] == [500]
    assert [e.load for e in loads.entries("shop", "other")] == [first]


def test_a_destination_that_begins_anew_keeps_its_place_in_loads_meanwhile(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning = Beginning("source", 1, ())
    site.loops.start(beginning, paused=True)
    keep, seen = site.ledger.keep_destinations, list[Any]()

    def watch(*given: Any) -> None:
        seen.append(set(site.loops.takes()))
        keep(*given)

    monkeypatch.setattr(site.ledger, "keep_destinations", watch)
    ended = site.loops._end

    def end(loops: Any) -> None:
        ended(loops)
        seen.append(set(site.loops.takes()))

    monkeypatch.setattr(site.loops, "_end", end)
    again = _flow(site.directory, "log", "other").model_copy(update={"parallelism": 3})
    site.loops.change(again, beginning, paused=True)
    assert seen == [{"log"}, {"log"}] and set(site.loops.takes()) == {"log", "other"}


def test_a_change_that_fails_half_way_ends_the_worker_and_is_no_refusal(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning = Beginning("source", 1, ())
    site.loops.start(beginning, paused=True)

    def away(*_: Any) -> None:
        raise LedgerUnreachable("the ledger is away")

    monkeypatch.setattr(site.ledger, "keep_destinations", away)
    with pytest.raises(ReloadUnfinished, match="changed by half: ledger_unreachable") as found:
        site.loops.change(_flow(site.directory, "other"), beginning, paused=True)
    assert found.value.retry == "timed"


def test_what_waits_for_a_paused_destination_grows_older(site: _Site) -> None:
    minute_ago = int((time.time() - 60) * 1e6)
    journal(site.directory / "state" / "journal" / "shop", [{"appended_at": minute_ago}])
    site.ledger.begin("shop", "log", 100, site.lease.generation)
    site.loops.start(Beginning("source", 100, ()), paused=True)
    wait_until(site.loops.are_quiet, 30, "the loop does not pause")
    (status,) = site.loops.statuses()
    assert 59 < status.lag_seconds < 120
    with reading() as read:
        (again,) = site.loops.statuses()
    assert again.lag_seconds >= status.lag_seconds and read.calls == 0, "the journal is looked through at every look"


def _failed(site: _Site, error: PenstockError) -> DestinationLoop:
    """The only loop, as one that has failed of that."""
    (loop,) = site.loops
    loop.stop()
    loop.join(30)
    loop._fail(error)
    return loop


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (DestinationRefused("too large"), False),
        (DestinationUnreachable("away"), False),
        (JournalTrimmed("gone"), True),
        (JournalFull("behind"), True),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_what_has_failed_is_tried_again_unless_the_journal_has_nothing_for_it_any_more(
    site: _Site, error: PenstockError, lost: bool
) -> None:
    site.ledger.begin("shop", "log", 500, site.lease.generation)
    site.loops.start(Beginning("source", 500, ()), paused=True)
    loop = _failed(site, error)
    assert loop.is_released() == lost and site.loops.failed() == (() if lost else ("log",))
    assert loop.status.error is not None and ("penstock flow reload shop" in str(loop.status.error["remedy"])) != lost
    # A worker that has no other destination ends with it, and nobody reloads it then.
    last = loop.end_of_all()
    assert type(last) is type(error) and last is not None and "reload shop" not in last.remedy
    assert ("start the worker" in last.remedy) == (error.retry == "timed")
    if not lost:
        # The journal fills up meanwhile.
        loop.give_up(JournalFull("behind"))
        assert loop.is_released() and site.loops.failed() == ()
        assert loop.status.error["code"] == "journal_full"


@pytest.mark.parametrize("first", [True, False])
def test_one_that_was_never_delivered_to_begins_where_it_would_have_begun(site: _Site, first: bool) -> None:
    place = site.directory / "state" / "journal" / "shop"
    journal(place, [{}] * 3)
    if first:
        site.ledger.loads.begin("shop", site.lease.generation, "first", {}, "test", {"log": [("public", "orders")]})
    flow = site.loops.flow
    now = flow.model_copy(update={"destinations": tuple(use.model_copy(update={"start": "now"}) for use in flow.destinations)})
    loops = Loops(now, site.loops._around)
    try:
        loops.start(Beginning("source", 100, ()), paused=True)
        (loop,) = loops
        assert loop.beginning == (100 if first else 103)
        loop.stop()
        loop.join(30)
        loop._fail(DestinationRefused("no"))
        journal(place, [{}] * 3)
        assert str(loops.change(now, Beginning("source", 100, ()), failed=loops.failed(), paused=True)) == "retried log"
        (again,) = loops
        assert again is not loop and again.beginning == loop.beginning and again.status.state != "failed"
    finally:
        loops.close()
