"""The worker: survives the loss of each of its processes, stops in order, and keeps one destination's trouble its own."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from penstock.core.position import parse_lsn
from tests.conftest import Database
from tests.flows import SCHEMA, FlowUnderTest, assert_duckdb_equals_source, assert_log_is_exact, change_log, load, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def family(flow: FlowUnderTest, kind: str) -> list[psutil.Process]:
    """The worker's processes of a kind: `java`, `capture`, `cradle` (with the captures), or `lane`."""
    assert flow.process is not None
    found = []
    for process in psutil.Process(flow.process.pid).children(recursive=True):
        try:
            words = " ".join(process.cmdline())
            if (
                (kind == "java" and process.name() == "java")
                or (kind == "capture" and process.name() == "capture")
                or (kind == "cradle" and "penstock.engine.cradle" in words)
                or (kind == "lane" and process.name() == "lane")
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_lanes_the_jvm_and_capture_may_die_and_the_flow_goes_on(flow: FlowUnderTest, database: Database) -> None:
    process = flow.start()
    with load(database, seed=3):
        flow.wait_for_progress()
        for victims in ("one lane", "lane", "java", "capture", "cradle", "java", "lane"):
            kind = victims.split()[-1]
            wait_until(lambda kind=kind: bool(family(flow, kind)), 60, f"no {victims} among the worker's processes")  # type: ignore[misc]
            found = family(flow, kind)
            for victim in found[:1] if victims == "one lane" else found:
                victim.send_signal(signal.SIGKILL)
            flow.wait_for_progress(120)
            assert process.poll() is None, flow.output()
            flow.assert_nothing_confirmed_early()
    process.terminate()
    assert process.wait(30) == 0, flow.output()
    flow.drain()
    assert_duckdb_equals_source(flow)
    assert_log_is_exact(flow)


def test_sigterm_stops_in_order_and_leaves_no_process(flow: FlowUnderTest, database: Database) -> None:
    process = flow.start()
    with load(database, seed=4):
        flow.wait_for_progress()
        wait_until(lambda: bool(family(flow, "lane")), 60, "no lanes")
        members = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(30) == 0, flow.output()
    assert len(members) >= 3
    wait_until(
        lambda: not any(m.is_running() and m.status() != psutil.STATUS_ZOMBIE for m in members), 15, "processes were left behind"
    )
    flow.assert_nothing_confirmed_early()


def test_a_killed_worker_takes_its_processes_along(flow: FlowUnderTest, database: Database) -> None:
    process = flow.start()
    database.execute("insert into steps values (1)")
    flow.wait_for_progress()
    members = psutil.Process(process.pid).children(recursive=True)
    flow.kill()
    wait_until(
        lambda: not any(m.is_running() and m.status() != psutil.STATUS_ZOMBIE for m in members), 15, "processes were left behind"
    )


def test_a_worker_that_wakes_after_it_was_taken_over_writes_nothing(flow: FlowUnderTest, database: Database) -> None:
    """Two workers: one runs, the other waits; the first stands still, the second carries on, the first wakes and ends."""
    first = flow.start()
    try:
        with load(database, seed=6):
            flow.wait_for_progress()
            second = flow.start()
            wait_until(lambda: "waiting: another process runs the flow" in flow.output(), 60, flow.output)
            flow.wait_for_progress()
            stop_outside_a_transaction(flow, first)
            head = parse_lsn(str(database.rows("select pg_current_wal_flush_lsn()::text")[0][0]))
            # DuckDB's file belongs to one process, also while that stands still; the change log does not wait for it.
            wait_until(lambda: flow.checkpoints()["log"] > head or second.poll() is not None, 120, flow.output)
            assert second.poll() is None and "lease taken over" in flow.output(), flow.output()
            first.send_signal(signal.SIGCONT)
            assert first.wait(60) == 1, flow.output()
            assert "lease_lost: " in flow.output() and "Traceback" not in flow.output(), flow.output()
            flow.wait_for_progress(120)
            flow.assert_nothing_confirmed_early()
    finally:
        first.kill()
        first.wait()
    second.terminate()
    assert second.wait(60) == 0, flow.output()
    flow.drain()
    assert_duckdb_equals_source(flow)
    assert_log_is_exact(flow)


def stop_outside_a_transaction(flow: FlowUnderTest, process: subprocess.Popen[bytes]) -> None:
    """Stopped where it keeps nobody from the ledger; one that does is ended, which is a claim of the lease's own tests."""

    def stopped() -> bool:
        process.send_signal(signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(flow.state / "ledger.db", timeout=0.2, isolation_level=None)) as ledger:
            try:
                ledger.execute("begin immediate")
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                return False
            ledger.execute("rollback")
        return True

    wait_until(stopped, 30, "it was always within a transaction")


def test_a_destination_that_fails_holds_back_nobody_else(flow: FlowUnderTest, database: Database) -> None:
    """Another process holds the DuckDB file; the files go on, and DuckDB catches up when it is free."""
    flow.drain()
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(f"""
            import duckdb, sys
            connection = duckdb.connect({str(flow.duckdb)!r})
            print("held", flush=True)
            sys.stdin.read()
        """)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdin is not None
    holder.stdout.readline()
    try:
        process = flow.start()
        database.execute("insert into steps select generate_series(1, 100)")
        head = parse_lsn(str(database.rows("select pg_current_wal_flush_lsn()::text")[0][0]))
        before = flow.checkpoints()["warehouse"]
        wait_until(lambda: flow.checkpoints()["log"] >= head, 90, flow.output)
        assert flow.checkpoints()["warehouse"] == before
        confirmed = flow.confirmed()
        assert confirmed is not None and confirmed <= before
        assert process.poll() is None, flow.output()
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait()
    wait_until(lambda: flow.checkpoints()["warehouse"] >= head, 90, flow.output)
    process.terminate()
    assert process.wait(30) == 0
    assert_duckdb_equals_source(flow)


def test_the_journal_is_enough_for_a_destination_whose_ledger_was_lost(flow: FlowUnderTest, database: Database) -> None:
    with load(database, seed=5) as commits:
        wait_until(lambda: commits[0] > 100, 60, "no load")
    flow.drain()
    for file in flow.state.glob("ledger.db*"):
        file.unlink()
    database.execute("insert into steps values (1000000)")
    flow.drain()
    assert_duckdb_equals_source(flow)
    assert_log_is_exact(flow)


def test_a_worker_that_is_killed_inside_of_a_big_transaction_goes_on_inside_of_it(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    flow = FlowUnderTest(database, tmp_path, config={"batch": {"max_rows": 50_000, "respect_source_tx": False}})
    flow.make_slot()
    database.execute("insert into steps select generate_series(1, 400000)")
    process = flow.start(PENSTOCK_FAILPOINT="engine.after_checkpoint:4")
    assert process.wait(180) == -signal.SIGKILL, flow.output()
    with contextlib.closing(sqlite3.connect(flow.state / "ledger.db")) as connection:
        parts = connection.execute("select part from checkpoints order by destination").fetchall()
    assert max(parts) > (50_000,), parts
    flow.assert_nothing_confirmed_early()
    flow.drain()
    assert_duckdb_equals_source(flow)
    log = change_log(flow, "steps")
    assert sorted(log.column("__ordinal").to_pylist()) == list(range(1, 400_001))


def test_a_lost_slot_is_named_and_nothing_is_pretended(flow: FlowUnderTest, database: Database) -> None:
    flow.drain()
    database.execute("insert into steps values (1)")
    database.execute(f"select pg_drop_replication_slot('{flow.slot}')")
    process = flow.start()
    assert process.wait(60) == 1
    assert "slot_missing" in flow.output() and "Traceback" not in flow.output()
