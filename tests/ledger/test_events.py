"""Events as a cursor: whoever asks for what comes after a number misses nothing, on two connections and of two flows."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.core.epoch import Epoch
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Checkpoint, Ledger
from penstock.ledger.lifecycle import note_event


@pytest.fixture
def two(address: LedgerAddress) -> Iterator[tuple[Ledger, Ledger]]:
    """Two processes' ledgers, which are one, with two flows."""
    with contextlib.closing(Ledger(address)) as mine, contextlib.closing(Ledger(address)) as theirs:
        for flow in ("shop", "other"):
            mine.take_over(flow, "5ec0ffee", "{}")
        yield mine, theirs


def test_an_event_is_seen_by_who_has_seen_one_that_began_later(two: tuple[Ledger, Ledger], address: LedgerAddress) -> None:
    mine, theirs = two
    with contextlib.closing(Ledger(address)) as watcher, ThreadPoolExecutor(1) as pool:
        last, seen = 0, list[str]()

        def look() -> int:
            found = watcher.lifecycle.after(last, 100)
            seen.extend(flow for flow, _ in found)
            return found[-1][1].id if found else last

        with mine._database.transaction("shop") as c:
            note_event(c, "shop", "first", "ann", None, None)
            later = pool.submit(theirs.lifecycle.note, "other", "second", "bob", None)
            with contextlib.suppress(TimeoutError):
                later.result(0.5)
            last = look()
        later.result(30)
        last = look()
    assert seen == ["shop", "other"]


def test_no_number_is_given_twice_when_the_flow_with_the_newest_event_is_forgotten(two: tuple[Ledger, Ledger]) -> None:
    mine, theirs = two
    mine.lifecycle.note("shop", "first", "ann", None)
    mine.lifecycle.note("other", "second", "ann", None)
    last = theirs.lifecycle.newest()
    mine.forget("other")
    theirs.lifecycle.note("shop", "third", "bob", None)
    assert [event.event for _, event in mine.lifecycle.after(last, 100)] == ["third"]


def test_who_is_about_to_note_an_event_holds_no_epoch_of_another_flow_up(two: tuple[Ledger, Ledger]) -> None:
    mine, theirs = two
    if not mine._database.address.is_shared:
        pytest.skip("a file has one writer")
    generation = theirs.take_over("other", "5ec0ffee", "{}")
    theirs.begin("other", "log", 0, generation)
    with mine._database.transaction("shop") as c:
        note_event(c, "shop", "first", "ann", None, None)
        for number in range(1, 20):
            epoch = Epoch("other", "log", "5ec0ffee", number, number - 1, number, 1, generation)
            theirs.plan(epoch, 1)
            theirs.close_epoch(epoch, generation)
    assert theirs.checkpoint("other", "log") == Checkpoint(19, 19)


def test_events_of_an_older_file_keep_their_numbers_and_none_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with contextlib.closing(Ledger(path)) as ledger:
        ledger.take_over("shop", "5ec0ffee", "{}")
    old = (
        "drop table flow_events",
        "create table flow_events (id integer not null primary key, flow varchar(63) not null, at bigint not null,"
        " event varchar(32) not null, who varchar(255) not null, why text, generation bigint, answers bigint)",
        "create index flow_events_by_flow on flow_events (flow, id)",
        "insert into flow_events values (5, 'shop', 1, 'first', 'ann', 'a shop', 7, null)",
        "insert into flow_events values (9, 'shop', 2, 'second', 'bob', null, 8, 3)",
        "update alembic_version set version_num = '0012'",
    )
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        for statement in old:
            file.execute(statement)
    with contextlib.closing(Ledger(path)) as ledger:
        kept = ledger.lifecycle.events("shop")
        assert [(e.id, e.event, e.who, e.why, e.generation, e.answers) for e in kept] == [
            (5, "first", "ann", "a shop", 7, None),
            (9, "second", "bob", None, 8, 3),
        ]
        ledger.forget("shop")
        ledger.take_over("shop", "5ec0ffee", "{}")
        ledger.lifecycle.note("shop", "third", "ann", None)
        assert ledger.lifecycle.newest() == 10
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("select 1 from sqlite_master where name = 'flow_events_by_flow'").fetchone()
