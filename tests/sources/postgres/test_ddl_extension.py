"""Event triggers and extension scripts; an extension of the test's own needs `extension_control_path`, of PostgreSQL 18."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.sources.postgres.captured import Captured


@pytest.fixture
def readable() -> Iterator[Path]:
    """A directory that the server's own user can read too."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_extensions_are_not_told(database: Database, tmp_path: Path, readable: Path) -> None:
    directory = readable / "extension"
    directory.mkdir(mode=0o755)
    (directory / "ours.control").write_text("default_version = '1'\n")
    (directory / "ours--1.sql").write_text("create table ours_t (id int primary key, v text);")
    (directory / "ours--1--2.sql").write_text("alter table ours_t drop v; create table ours_u (); drop table ours_u;")
    database.execute("create table a (id int primary key)")
    captured = Captured(database, tmp_path / "journal", capture_ddl=True, publication_tables=["public.*"])
    with captured.running():
        with database.connect() as c:
            c.execute(f"set extension_control_path = '$system:{readable}'")
            c.execute("create extension ours")
            c.execute("alter extension ours update to '2'")
            c.execute("drop extension ours")
        captured.drain()
    assert captured.events("messages") == []
