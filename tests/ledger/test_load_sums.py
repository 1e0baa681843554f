"""Sums over loads: the database counts, looking costs the same however many chunks there were, and chunks go in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.control.backfills import LoadDesk
from penstock.core.epoch import Epoch
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_sums import Sums
from penstock.ledger.loads import Load
from tests.ledger.conftest import rows

TABLES = ("orders", "people")


class Site:
    """A ledger with a flow, whose loads are as large as is asked for."""

    def __init__(self, address: LedgerAddress) -> None:
        self.ledger = Ledger(address)
        self.generation = self.ledger.take_over("shop", "5ec0ffee", "{}")

    def load(self, chunks: int, *, read: int | None = None, delivered: int = 0, state: str | None = None) -> int:
        """A load of so many chunks of each table, of which so many were read, and delivered to `log`; its number."""
        loads, generation = self.ledger.loads, self.generation
        number = loads.request("shop", "backfill", {"tables": list(TABLES)}, "ann")
        load = self.find(number)
        planned = [
            {"schema": "public", "table": name, "content": {"table": {"name": name}, "chunk": n}, "rows": 7, "bytes": 100}
            for name in TABLES
            for n in range(chunks)
        ]
        loads.plan(load, generation, planned, snapshot=None, position=0, low=0)
        mine = {name: [c.id for c in loads.chunks(number) if c.table == name] for name in TABLES}
        done = [c for name in TABLES for c in mine[name][: chunks if read is None else read]]
        places = {"snapshot": None, "position": 1, "low": 1, "file": "f"}
        loads.record_read(load, generation, [{"id": c, "rows": 10, "bytes": 120, **places} for c in done])
        with self.ledger._fenced("shop", generation) as c:
            had = [c for name in TABLES for c in mine[name][:delivered]]
            loads.close(c, Epoch("shop", "log", "5ec0ffee", 1, 0, 1, 1, generation), {"chunks": had})
        if state is not None:
            loads.become(load, generation, state)
        return number

    def find(self, number: int) -> Load:
        found = self.ledger.loads.find("shop", number)
        assert found is not None
        return found

    def shrink(self, most: int = 1000) -> int:
        """How many steps it takes to give up everything that may go."""
        steps = 0
        while self.ledger.load_sums.shrink("shop", self.generation, time.time_ns() // 1000 + 1, most):
            steps += 1
        return steps

    @contextmanager
    def watched(self) -> Iterator[list[int]]:
        """Collects how many rows each query gives."""
        asked: list[tuple[str, Any]] = []
        found: list[int] = []
        engine = self.ledger._database._engine

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            asked.append((statement, parameters))

        sa.event.listen(engine, "after_cursor_execute", note)
        try:
            yield found
        finally:
            sa.event.remove(engine, "after_cursor_execute", note)
        with self.ledger._database.reading() as c:
            for statement, parameters in asked:
                counted = c.exec_driver_sql(f"select count(*) from ({statement}) counted", parameters)
                found.append(int(counted.scalar_one()))


@pytest.fixture
def site(address: LedgerAddress) -> Iterator[Site]:
    made = Site(address)
    yield made
    made.ledger.close()


@pytest.mark.slow
def test_a_page_of_loads_costs_as_much_as_it_has_loads_however_many_chunks_there_were(site: Site, tmp_path: Path) -> None:
    for _ in range(12):
        site.load(40, delivered=40, state="done")
    last = site.load(40, read=10, delivered=3)
    desk = LoadDesk("shop", tmp_path, site.ledger)
    with site.watched() as found:
        page = desk.page(None, 5)
        shown = desk.summaries(page)
    assert [one["id"] for one in shown] == list(range(last, last - 5, -1))
    assert len(found) <= 3 and sum(found) <= 3 * 5, found
    newest = shown[0]
    assert {name: newest[name] for name in ("chunks", "read", "rows", "bytes", "table_count", "delivered")} == {
        "chunks": 80,
        "read": 20,
        "rows": 200,
        "bytes": 2400,
        "table_count": 2,
        "delivered": {"log": 6},
    }
    assert newest["percent"] == round(100 * 2400 / (2400 + 60 * 100), 1)
    with site.watched() as found:
        assert [load.id for load in site.ledger.loads.open("shop")] == [last]
    assert sum(found) == 1
    assert [load.id for load in desk.page(last - 10, 5)] == [last - 11, last - 12]


def test_the_chunks_of_loads_that_are_over_go_step_by_step_and_what_is_shown_stays(
    site: Site, address: LedgerAddress, tmp_path: Path
) -> None:
    over = [site.load(5, delivered=5, state="done"), site.load(6, read=4, delivered=2, state="cancelled"), site.load(3, read=0)]
    site.ledger.loads.become(site.find(over[2]), site.generation, "failed", "no")
    going = site.load(4, read=2, delivered=1)
    desk = LoadDesk("shop", tmp_path, site.ledger)
    before = [desk.describe(site.find(number)) for number in over]
    kept = site.ledger.load_sums.of([going])
    early = int(site.find(over[0]).updated_at)
    assert not site.ledger.load_sums.shrink("shop", site.generation, early), "none has been over for long enough"
    assert site.ledger.load_sums.shrink("shop", site.generation, time.time_ns() // 1000 + 1, 3)
    assert [desk.describe(site.find(number)) for number in over] == before, "while some of it is gone"
    assert site.shrink(3) >= 8
    assert [desk.describe(site.find(number)) for number in over] == before
    assert before[0]["rows"] == 100 and before[1]["delivered"] == {"log": 4} and before[2]["chunks"] == 0
    for table in ("load_chunks", "load_tables"):
        assert rows(address, f"select distinct load_id from {table}") == [(going,)]
    assert rows(address, "select count(*) from load_deliveries") == [(2,)]
    assert site.ledger.load_sums.of([going]) == kept and kept[going] != Sums()
    assert site.ledger.load_sums.tables("shop", going) == {("public", name) for name in TABLES}
    assert site.ledger.load_sums.tables("shop", over[0]) == set()


def test_an_epoch_of_a_load_whose_chunks_are_gone_is_closed_all_the_same(site: Site) -> None:
    number = site.load(2, state="cancelled")
    ledger, generation = site.ledger, site.generation
    chunks = [c.id for c in ledger.loads.chunks(number, over=True)]
    ledger.begin("shop", "log", 1, generation)
    epoch = Epoch("shop", "log", "5ec0ffee", 1, 1, 1, 1, generation)
    ledger.plan(epoch, 1)
    site.shrink()
    ledger.close_epoch(epoch, generation, side={"load": number, "chunks": chunks})
    assert ledger.planned("shop", "log") == []


def test_a_flow_is_forgotten_with_the_sums_of_its_loads(site: Site, address: LedgerAddress) -> None:
    site.load(2, state="done")
    site.shrink()
    assert rows(address, "select count(*) from load_sums") == [(2,)]
    site.ledger.forget("shop")
    assert rows(address, "select count(*) from load_sums") == [(0,)]
