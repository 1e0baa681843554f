"""`toast_fetch` through a running worker, under load: tables stay equal, and the log's filled values are the right ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.core.batch import Op
from penstock.journal.reader import JournalTail, SliceReader
from penstock.sources.postgres.decoder import PostgresDecoder
from tests.conftest import Database
from tests.flows import SCHEMA, FlowUnderTest, assert_duckdb_equals_source, assert_log_is_exact, change_log, load, wait_until
from tests.sources.postgres.captured import events_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def exact_values(flow: FlowUnderTest) -> dict[tuple[int, int], tuple[bool, Any]]:
    """By identity of every change of accounts: whether its log carried `big`, and what `big` was, NULL when nobody knows."""
    directory = flow.state / "journal" / flow.name
    tail, reader = JournalTail(directory, None), SliceReader(directory)
    slices = []
    while part := tail.read():
        slices += part
    now: dict[int, Any] = {}
    found: dict[tuple[int, int], tuple[bool, Any]] = {}
    for batch in PostgresDecoder().decode(reader, slices, 0, 1, lambda table: table.name == "accounts"):
        for event in events_of(batch):
            row = event["row"]
            if event["op"] in (Op.DELETE.name.lower(), "leave"):
                left = now.pop(row["id"], None)
                continue
            if event["op"] == "enter":
                now[row["id"]] = left
            carried = "big" not in event["unchanged"]
            if carried:
                now[row["id"]] = row["big"]
            found[event["id"]] = (carried, now.get(row["id"]))
    tail.close()
    reader.close()
    return found


@pytest.mark.parametrize("mode", ["source", "cache"])
def test_a_flow_that_fills_gaps_keeps_every_promise(database: Database, tmp_path: Path, mode: str) -> None:
    database.execute(SCHEMA)
    flow = FlowUnderTest(database, tmp_path, toast_fetch=mode, toast_cache_size=100)
    flow.make_slot()
    flow.start()
    with load(database, seed=11) as commits:
        wait_until(lambda: commits[0] > 400, 120, flow.output)
    flow.wait_for_progress()
    # An epoch in which no change carries the value.
    database.execute("update accounts set v = v + 1")
    flow.wait_for_progress()
    # Identity FULL from here on: the old row is in the log.
    database.execute("alter table accounts replica identity full")
    with load(database, seed=12) as commits:
        wait_until(lambda: commits[0] > 100, 120, flow.output)
    flow.wait_for_progress()
    assert flow.process is not None
    flow.process.terminate()
    assert flow.process.wait(30) == 0, flow.output()
    flow.drain()
    assert_duckdb_equals_source(flow)
    assert_log_is_exact(flow)
    truth = exact_values(flow)
    filled = later = 0
    for row in change_log(flow, "accounts").to_pylist():
        if row["__op"] != "update":
            continue
        carried, value = truth[(row["__position"], row["__ordinal"])]
        if "big" in row["__read_later"]:
            later += 1
        elif "big" not in row["__unchanged"]:
            assert row["big"] == value, "a filled value is stale"
            filled += not carried
    assert filled > 0
    assert (later > 0) == (mode != "cache")


def test_values_written_as_null_are_said_once_per_table(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table odd (id int primary key, n numeric(5,2)); create table strange (id int primary key, n numeric(5,2))"
    )
    flow = FlowUnderTest(database, tmp_path)
    flow.path.write_text(flow.path.read_text().replace("path:", "on_unrepresentable: 'null'\n    path:"))
    flow.make_slot()
    process = flow.start()
    for number in range(3):
        database.execute(f"insert into odd values ({number}, 'NaN'); insert into strange values ({number}, 'NaN')")
        flow.wait_for_progress()
    process.terminate()
    assert process.wait(30) == 0, flow.output()
    said = [line for line in flow.output().splitlines() if "values written as NULL" in line]
    assert len(said) == 4, flow.output()
    assert {(name, table) for name in ("warehouse", "log") for table in ("odd", "strange")} == {
        (name, table)
        for line in said
        for name in ("warehouse", "log")
        for table in ("odd", "strange")
        if name in line and f"public.{table}" in line
    }
