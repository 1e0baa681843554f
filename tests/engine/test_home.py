"""Two installations with a flow of the same name on one server: neither takes what is the other's."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.files import running_flow
from penstock.control.cleanup import Cleanup
from penstock.engine.places import home
from penstock.errors import SlotTaken
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.flows import SCHEMA, FlowUnderTest


def _source(flow: FlowUnderTest, state: Path | None) -> PostgresSource:
    made = PostgresSource(flow.name, PostgresOptions(dsn=flow.database.dsn))
    made.home = home(state) if state is not None else ""
    return made


@pytest.fixture
def flow(database: Database, tmp_path: Path) -> FlowUnderTest:
    database.execute(SCHEMA)
    return FlowUnderTest(database, tmp_path)


def test_a_new_flow_does_not_take_over_the_slot_of_a_namesake_elsewhere(flow: FlowUnderTest, tmp_path: Path) -> None:
    first, second = _source(flow, tmp_path / "a"), _source(flow, tmp_path / "b")
    try:
        start = first.prepare(None).start
        assert first.prepare(None).start == start, "one's own slot is found again, as after a crash before the journal was there"
        with pytest.raises(SlotTaken, match=f"whose state lies in .*{tmp_path}/a/ledger.db") as found:
            second.prepare(None)
        assert "slot drop" in found.value.remedy
        # With a journal of its own it is the flow itself, whose state was moved.
        assert second.prepare(start).start == start
        with pytest.raises(SlotTaken):
            first.prepare(None)
    finally:
        first.close()
        second.close()


def test_a_slot_that_nobody_has_claimed_is_used_and_then_claimed(flow: FlowUnderTest, tmp_path: Path) -> None:
    flow.make_slot()
    first, second = _source(flow, tmp_path / "a"), _source(flow, tmp_path / "b")
    try:
        first.prepare(None)
        with pytest.raises(SlotTaken):
            second.prepare(None)
    finally:
        first.close()
        second.close()


def test_cleanup_leaves_what_a_namesake_elsewhere_has_made(flow: FlowUnderTest, tmp_path: Path) -> None:
    theirs = _source(flow, tmp_path / "a")
    theirs.prepare(None)
    theirs.close()
    definition = running_flow(flow.path)
    with Cleanup(definition, tmp_path / "b") as work:
        found, _ = work.look()
        assert [(one.kind, one.made) for one in found] == [("slot", False)] and f"{tmp_path}/a/ledger.db" in found[0].note
        assert work.run(remove_state=False) == []
    assert flow.confirmed() is not None
    with Cleanup(definition, tmp_path / "a") as work:
        assert {"slot", "publication"} <= {one.kind for one in work.run(remove_state=False)}
    assert flow.confirmed() is None
