"""The worker and the watch over its source: what is said at the start, and what ends a flow."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest

from penstock.core.position import parse_lsn
from tests.conftest import Database
from tests.flows import SCHEMA, FlowUnderTest, assert_duckdb_equals_source, wait_until

HEARTBEAT = 10.0
"""The option's default."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def flow(database: Database, tmp_path: Path) -> Iterator[FlowUnderTest]:
    database.execute(SCHEMA)
    made = FlowUnderTest(database, tmp_path)
    made.make_slot()
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def memory(flow: FlowUnderTest) -> dict[str, object]:
    with closing(sqlite3.connect(f"file:{flow.state / 'ledger.db'}?mode=ro", uri=True)) as connection:
        return dict(json.loads(connection.execute("select memory from flows").fetchone()[0]))


def test_a_start_says_what_it_uses_and_a_new_table_joins_while_the_flow_runs(flow: FlowUnderTest, database: Database) -> None:
    process = flow.start()
    wait_until(lambda: flow.output().count("flow started") == 1, 90, flow.output)
    line = next(line for line in flow.output().splitlines()[::-1] if "flow started" in line)
    for word in (
        "source=postgres",
        f"slot={flow.slot}",
        "publication=",
        "tables=",
        "public.accounts",
        "journal_end=",
        "timeline=1",
        "warehouse from oldest",
    ):
        assert word in line, (word, line)
    assert "at 0/0" not in line
    database.execute("create table later (id int primary key, v text)")
    wait_until(lambda: "table joined" in flow.output(), 60, flow.output)
    database.execute("insert into later values (1, 'x'); insert into steps values (1)")
    flow.wait_for_progress()
    process.terminate()
    assert process.wait(30) == 0, flow.output()
    assert_duckdb_equals_source(flow)
    with closing(duckdb.connect(str(flow.duckdb), read_only=True)) as connection:
        assert connection.execute("select * from public.later").fetchall() == [(1, "x")]
    assert "public.later" in json.dumps(memory(flow))


def test_a_table_taken_out_of_the_publication_ends_the_flow_until_it_is_put_back(flow: FlowUnderTest, database: Database) -> None:
    process = flow.start()
    wait_until(lambda: flow.output().count("flow started") == 1, 90, flow.output)
    database.execute(f"alter publication {flow.slot} drop table steps; insert into steps values (1)")
    assert process.wait(60) == 1, flow.output()
    assert "publication_narrowed" in flow.output() and "public.steps was taken out" in flow.output()
    again = flow.start("--max-empty-reads", "2")
    assert again.wait(60) == 1 and flow.output().count("public.steps was taken out") >= 2, flow.output()
    database.execute(f"alter publication {flow.slot} add table steps; insert into steps values (2)")
    process = flow.start()
    # The look that tells comes seconds after the start, when a worker that only empties the log has ended.
    wait_until(lambda: "put back" in flow.output() or process.poll() is not None, 90, flow.output)
    process.terminate()
    assert process.wait(60) == 0 and "put back" in flow.output() and "Traceback" not in flow.output(), flow.output()


def test_a_quiet_flow_lags_less_than_a_megabyte_within_two_heartbeats_of_a_busy_neighbour(
    flow: FlowUnderTest, database: Database
) -> None:
    """With every destination's checkpoint in between, as the default policy wants it."""
    neighbour = Database(database.server, f"n_{database.name}")
    database.server.run(f"create database {neighbour.name}")
    try:
        neighbour.execute("create table busy (v text)")
        flow.path.write_text(flow.path.read_text().replace("    dsn:", "    emit_empty: true\n    dsn:"))
        flow.start()
        database.execute("insert into steps values (1)")
        flow.wait_for_progress()
        for _ in range(25):
            neighbour.execute("insert into busy select repeat('x', 1000) from generate_series(1, 1000)")
        head = parse_lsn(str(database.rows("select pg_current_wal_flush_lsn()::text")[0][0]))
        wait_until(lambda: head - (flow.confirmed() or 0) < 1 << 20, 2 * HEARTBEAT, flow.output())
        flow.assert_nothing_confirmed_early()
        # `emit_empty`: what the neighbour wrote is an epoch without changes, and spans follow each other.
        with closing(sqlite3.connect(f"file:{flow.state / 'ledger.db'}?mode=ro", uri=True)) as connection:
            query = "select after, upto, changes from epochs where destination = 'log' and state = 'closed' order by number"
            spans = connection.execute(query).fetchall()
        assert any(changes == 0 for _, _, changes in spans)
        assert all(first[1] == second[0] for first, second in pairwise(spans))
    finally:
        database.server.run(f"drop database {neighbour.name} with (force)")
