"""What a flow was, and what it leaves, over REST, over gRPC and without a server."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client import ControlPlane
from penstock.client.local import LocalPlane
from penstock.core.epoch import Epoch
from penstock.core.flow import Flow
from penstock.core.schema import Column, TableSchema
from penstock.engine.places import ledger_address
from penstock.engine.reloading import kept
from penstock.engine.whereabouts import Whereabouts
from penstock.errors import FlowUnknown, RequestRefused
from penstock.journal.catalog import Entry
from penstock.journal.chunks import chunk_path
from penstock.journal.record import Slice, SliceFlag
from penstock.journal.writer import JournalWriter
from penstock.ledger.ledger import Ledger
from tests.control.definitions import definition


def test_versions_of_tables_and_the_history_of_checkpoints_are_shown(plane: ControlPlane, tmp_path: Path) -> None:
    state = tmp_path / ("local" if isinstance(plane, LocalPlane) else "state")
    plane.create_flow(definition())
    assert plane.schemas("shop").schemas == [] and plane.checkpoints("shop", limit=5).history == []
    writer = JournalWriter(state / "journal" / "shop")
    writer.begin(0x100)
    columns = (Column("id", pa.int64(), "bigint"), Column("v", pa.string(), "text"))
    for seq, (name, version, position) in enumerate((("orders", 1, 0x110), ("people", 1, 0x120), ("orders", 2, 0x130)), 1):
        segment, start, end, checksum = writer.append(memoryview(b"x" * 50))
        one = Slice(segment, start, end, position, position + 5, 0, 0, 0, 0, checksum, 1, 1, SliceFlag.SCHEMA, seq - 1)
        table = TableSchema("public", name, columns[:version], ("id",), version, name)
        writer.publish([one], [Entry(seq, 7, segment, start + 10, table, {})], position + 5)
    writer.close()
    found = plane.schemas("shop").schemas
    assert [(s.table, s.version, s.since) for s in found] == [
        ("orders", 1, "0/110"),
        ("people", 1, "0/120"),
        ("orders", 2, "0/130"),
    ]
    assert [(c.name, c.type, c.arrow) for c in found[2].columns] == [("id", "bigint", "int64"), ("v", "text", "string")]
    assert found[2].key == ["id"]
    assert [s.version for s in plane.schemas("shop", table="public.ord*").schemas] == [1, 2]
    assert [(s.table, s.version) for s in plane.schemas("shop", at="0/12F").schemas] == [("orders", 1), ("people", 1)]
    assert [s.version for s in plane.schemas("shop", table="orders", at="0/130").schemas] == [2]
    with pytest.raises(RequestRefused):
        plane.schemas("shop", at="yesterday")
    with contextlib.closing(Ledger(ledger_address(state))) as ledger:
        generation = ledger.take_over("shop", "5ec0ffee", "{}")
        for destination, numbers in (("log", (1, 2, 3)), ("other", (1,))):
            ledger.begin("shop", destination, 0, generation)
            for number in numbers:
                epoch = Epoch("shop", destination, "5ec0ffee", number, 16 * (number - 1), 16 * number, 1, generation)
                ledger.plan(epoch, number)
                ledger.close_epoch(epoch, generation)
    told = plane.checkpoints("shop", destination="log", limit=2)
    assert [(c.destination, c.position) for c in told.checkpoints] == [("log", "0/30")]
    assert [(e.epoch, e.after, e.position, e.changes) for e in told.history] == [(3, "0/20", "0/30", 3), (2, "0/10", "0/20", 2)]
    assert told.history[0].closed_at >= told.history[0].planned_at
    assert len(plane.checkpoints("shop", limit=1000).history) == 4 and plane.checkpoints("shop").history == []
    for unknown in (lambda: plane.schemas("nobody"), lambda: plane.checkpoints("nobody")):
        with pytest.raises(FlowUnknown):
            unknown()


def test_backfills_are_listed_page_by_page_the_newest_first(plane: ControlPlane, tmp_path: Path) -> None:
    state = tmp_path / ("local" if isinstance(plane, LocalPlane) else "state")
    plane.create_flow(definition())
    with contextlib.closing(Ledger(ledger_address(state))) as ledger:
        ledger.take_over("shop", "5ec0ffee", "{}")
    numbers = [plane.start_backfill("shop", ["public.a"]).id for _ in range(5)]
    pages, before = [], None
    while True:
        page = plane.backfills("shop", before=before, limit=2)
        pages.append([one.id for one in page.backfills])
        before = page.next
        if before is None:
            break
    assert pages == [numbers[:2:-1], numbers[2:0:-1], numbers[:1]]
    assert len(plane.backfills("shop").backfills) == 5


def test_a_deleted_flow_leaves_no_rows_here_and_a_journal_elsewhere_is_named(plane: ControlPlane, tmp_path: Path) -> None:
    state = tmp_path / ("local" if isinstance(plane, LocalPlane) else "state")
    plane.create_flow(definition())
    left = chunk_path(state / "journal" / "shop", 1, "0.copy")
    left.parent.mkdir(parents=True)
    left.write_text("a row")
    plane.delete_flow("shop", cleanup=False)
    assert not (state / "journal" / "shop").exists()
    plane.create_flow(definition())
    with contextlib.closing(Ledger(ledger_address(state))) as ledger:
        ledger.place_journal("shop", ledger.take_over("shop", "5ec0ffee", "{}"), "db2:/journal")
    plane.delete_flow("shop", cleanup=False, why="over")
    assert plane.events().events[-1].why == "over; the journal stays in db2:/journal"


def test_a_journal_whose_place_is_a_reference_is_where_the_worker_has_found_it(plane: ControlPlane, tmp_path: Path) -> None:
    state = tmp_path / ("local" if isinstance(plane, LocalPlane) else "state")
    sent = definition(config={"journal": {"url": "${env:SHOP_JOURNALS}/shop"}})
    plane.create_flow(sent)
    assert plane.flow("shop").journal.bytes == 0 and plane.schemas("shop").schemas == []
    there = tmp_path / "journals" / "shop"
    writer = JournalWriter(there)
    writer.begin(0x100)
    segment, start, end, checksum = writer.append(memoryview(b"x" * 50))
    table = TableSchema("public", "orders", (Column("id", pa.int64(), "bigint"),), ("id",), 1, "orders")
    one = Slice(segment, start, end, 0x110, 0x115, 0, 0, 0, 0, checksum, 1, 1, SliceFlag.SCHEMA, 0)
    writer.publish([one], [Entry(1, 7, segment, start + 10, table, {})], 0x115)
    writer.close()
    found = Flow.model_validate({**sent, "config": {"journal": {"url": str(there)}}})
    with contextlib.closing(Ledger(ledger_address(state))) as ledger:
        generation = ledger.take_over("shop", "5ec0ffee", kept(found))
        Whereabouts(ledger, "shop", there).record(generation)
        ledger.begin("shop", "log", 0x105, generation)
    shown = plane.flow("shop")
    assert shown.journal.bytes > 50 and shown.journal.mark == "0/115" and shown.acknowledgement.allowed == "0/105"
    assert shown.destinations[0].lag_bytes == 0x10
    assert [s.table for s in plane.schemas("shop").schemas] == ["orders"]
    assert (plane.flow("shop").definition or {})["config"]["journal"]["url"] == "${env:SHOP_JOURNALS}/shop"
    plane.delete_flow("shop", cleanup=False)
    assert not there.exists() and plane.events().events[-1].why is None
