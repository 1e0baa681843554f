"""Versions of tables by position, with a server's own log as the oracle."""

from __future__ import annotations

from pathlib import Path

from penstock.journal.versions import as_of, table_versions
from tests.conftest import Database
from tests.sources.postgres.captured import Captured


def test_a_version_is_in_force_from_the_first_transaction_that_has_it(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    captured = Captured(database, tmp_path / "journal", slot=f"v_{database.name}"[:63])
    ends: list[int] = []
    with captured.running():
        for number, change in enumerate(("", "alter table a add v text", "alter table a drop v")):
            # Several transactions in a burst, so that a slice would hold more than one if a version did not begin it.
            database.execute(f"insert into b values ({2 * number}); insert into b values ({2 * number + 1})")
            if change:
                database.execute(change)
            database.execute(f"insert into a (id) values ({number})")
            captured.drain()
            ends.append(captured.source.head())
    versions = table_versions(captured.directory)
    assert [[c.name for c in v.table.columns] for v in versions if v.table.name == "a"] == [["id"], ["id", "v"], ["id"]]
    inserts = [batch for batch in captured.batches() if batch.table.name == "a"]
    positions = {batch.table.version: min(batch.position.to_pylist()) for batch in inserts}
    assert {v.table.version: v.since for v in versions if v.table.name == "a"} == positions
    found = [{v.table.name: len(v.table.columns) for v in as_of(versions, end)} for end in ends]
    assert found == [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 1}]
    assert as_of(versions, 1) == []
