"""Replay: what is refused, what is moved, and that a destination has everything again afterwards."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from penstock.core.flow import Flow
from penstock.core.position import format_lsn
from penstock.engine.reloading import kept
from penstock.engine.replaying import Reached, Replay, check, send_again, source_options
from penstock.errors import FlowUnknown, JournalTrimmed, RewindRefused
from penstock.journal.record import SliceFlag
from penstock.ledger.ledger import Checkpoint, Ledger
from tests.conftest import Database
from tests.engine.test_planner import journal
from tests.flows import FlowUnderTest, assert_duckdb_equals_source, change_log

FLOW = Flow.model_validate(
    {
        "name": "shop",
        "source": {"type": "postgres", "options": {"dsn": "postgresql://u@h/d"}},
        "destinations": [
            {"name": "warehouse", "type": "duckdb"},
            {"name": "log", "type": "files"},
            {"name": "out", "type": "stdout"},
        ],
    }
)
TABLE, FILES, LINES = Reached("warehouse", "duckdb", 104), Reached("log", "files", 104), Reached("out", "stdout", 104)


@pytest.mark.parametrize(
    ("told", "why"),
    [(None, "was told is safe"), (103, r"everything up to 0/67 is safe: its place cannot go back"), (50, "not filled backwards")],
)
def test_a_position_that_nobody_has_is_refused_with_where_it_went(tmp_path: Path, told: int | None, why: str) -> None:
    journal(tmp_path, [{}] * 5)
    with pytest.raises(JournalTrimmed, match=f"begins at 0/64.*{why}") as refused:
        check("shop", TABLE, 99, tmp_path, 100, told=told)
    assert "backfill" in refused.value.remedy and "0/64 at most" in refused.value.remedy
    with pytest.raises(JournalTrimmed, match="no journal"):
        check("shop", TABLE, 99, tmp_path, None)


def test_nothing_is_skipped_and_a_change_log_is_not_written_twice(tmp_path: Path) -> None:
    journal(tmp_path, [{}] * 5)
    with pytest.raises(RewindRefused, match="has only reached 0/68"):
        check("shop", TABLE, 105, tmp_path, 100)
    with pytest.raises(RewindRefused, match="twice"):
        check("shop", FILES, 102, tmp_path, 100)
    for one in (TABLE, LINES):
        check("shop", one, 102, tmp_path, 100)


def test_tables_do_not_go_back_over_a_key_change_that_they_have_had(tmp_path: Path) -> None:
    moved = {"flags": int(SliceFlag.KEY_CHANGE)}
    journal(tmp_path, [{}, moved, {}, {}, moved])
    with pytest.raises(RewindRefused, match="changed their keys after 0/65, at or before 0/66"):
        check("shop", TABLE, 101, tmp_path, 100)
    # One that comes after it, one that lies before it, and one that each change stands for itself.
    check("shop", TABLE, 102, tmp_path, 100)
    check("shop", LINES, 101, tmp_path, 100)


def test_a_replay_moves_all_that_are_meant_or_none(tmp_path: Path) -> None:
    journal(tmp_path / "journal", [{}] * 5)
    ledger = Ledger(tmp_path / "ledger.db")
    generation = ledger.take_over("shop", "5ec0ffee", kept(FLOW))
    for name in ("warehouse", "log", "out"):
        ledger.begin("shop", name, 104, generation)
    with pytest.raises(RewindRefused, match="log"):
        send_again(Replay(102), FLOW, ledger, generation, tmp_path / "journal", 104)
    assert set(ledger.checkpoints("shop").values()) == {104}
    with pytest.raises(FlowUnknown):
        send_again(Replay(102, "nowhere"), FLOW, ledger, generation, tmp_path / "journal", 104)
    send_again(Replay(102, "warehouse"), FLOW, ledger, generation, tmp_path / "journal", 104)
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(102, 1) and ledger.is_rewound("shop", "warehouse", 1)
    assert ledger.planned("shop", "warehouse") == [] and not ledger.is_rewound("shop", "out", 0)
    assert [e.why for e in ledger.lifecycle.events("shop")] == ["warehouse from 0/68 to 0/66"]
    ledger.close()


def test_a_flow_without_a_journal_begins_there_for_all_destinations(tmp_path: Path) -> None:
    assert source_options(Replay(102), FLOW, tmp_path) == {"start_lsn": "0/66"}
    with pytest.raises(RewindRefused, match="no journal yet"):
        source_options(Replay(102, "warehouse"), FLOW, tmp_path)
    journal(tmp_path, [{}])
    assert source_options(Replay(102), FLOW, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_table_that_lost_rows_has_them_again_after_a_replay(flow: FlowUnderTest, database: Database) -> None:
    database.execute("insert into accounts select n, n, n, repeat('x', 3000), now() from generate_series(1, 50) n")
    flow.drain()
    begun = format_lsn(flow.checkpoints()["warehouse"])
    database.execute(
        "insert into accounts select n, n, n, null, now() from generate_series(51, 90) n; insert into steps values (1)"
    )
    database.execute("update accounts set v = v + 1 where id % 3 = 0; delete from accounts where id % 10 = 0")
    flow.drain()
    assert_duckdb_equals_source(flow)
    with duckdb.connect(str(flow.duckdb)) as connection:
        connection.execute("delete from public.accounts where id > 50; update public.accounts set v = -1 where id % 3 = 0")
    asked = ("--max-empty-reads", "2", "--start-lsn")
    assert flow.start(*asked, "0/1", "--destination", "warehouse").wait(180) == 1
    assert "journal_trimmed" in flow.output() and "penstock backfill" in flow.output()
    assert flow.start(*asked, begun, "--destination", "warehouse").wait(180) == 0, flow.output()
    assert_duckdb_equals_source(flow)
    # The other destination was not sent anything again.
    told = change_log(flow, "accounts").column("__event_id").to_pylist()
    assert len(told) == len(set(told)) > 100
