"""Heartbeats: a quiet flow does not pin the log that others write."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.position import parse_lsn
from tests.conftest import Database
from tests.processes import wait_until
from tests.sources.postgres.supervised import Supervised

HEARTBEAT = 2.0


@pytest.fixture
def database(each_database: Database) -> Database:
    """A fresh database on each major version in turn."""
    return each_database


@pytest.fixture
def neighbour(database: Database) -> Iterator[Database]:
    """Another database of the same server."""
    name = f"n_{uuid.uuid4().hex[:12]}"
    database.server.run(f"create database {name}")
    yield Database(database.server, name)
    database.server.run(f"drop database {name} with (force)")


def lag(database: Database) -> int:
    ((head, confirmed),) = database.rows(
        "select pg_current_wal_flush_lsn()::text, confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s",
        f"s_{database.name}",
    )
    return parse_lsn(str(head)) - parse_lsn(str(confirmed))


def write(database: Database, megabytes: int) -> None:
    """That much log from a table that nobody publishes, in many transactions."""
    for _ in range(megabytes):
        database.execute("insert into busy select repeat('x', 1000) from generate_series(1, 1000)")


@pytest.mark.parametrize("where", ["same database", "other database"])
@pytest.mark.slow
def test_an_idle_published_database_beside_a_busy_one_lags_less_than_a_megabyte_within_two_heartbeats(
    database: Database, neighbour: Database, tmp_path: Path, where: str
) -> None:
    busy = database if where == "same database" else neighbour
    database.execute("create table t (id int primary key)")
    busy.execute("create table busy (v text)")
    flow = Supervised(
        database.dsn,
        tmp_path,
        slot=f"s_{database.name}",
        publication_tables=["public.t"],
        heartbeat_interval=f"{HEARTBEAT}s",
        status_interval="60s",
    )
    with flow.running():
        database.execute("insert into t values (1)")
        flow.drain()
        # A mark has just been made: the next one is a whole heartbeat away.
        write(busy, 25)
        assert lag(database) > 0
        wait_until(lambda: lag(database) < 1 << 20, 2 * HEARTBEAT)
        # And it stays so while the neighbour goes on.
        deadline, worst = time.monotonic() + 3 * HEARTBEAT, 0
        while time.monotonic() < deadline:
            write(busy, 1)
            time.sleep(HEARTBEAT / 8)
            worst = max(worst, lag(database))
        assert worst < 25 << 20
        wait_until(lambda: lag(database) < 1 << 20, 2 * HEARTBEAT)
    assert flow.ids() == [1]


def test_where_nobody_writes_nothing_is_written_into_the_journal_either(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    flow = Supervised(database.dsn, tmp_path, slot=f"s_{database.name}", heartbeat_interval="1s")
    with flow.running():
        flow.drain()
        assert flow.supervisor is not None
        mark = flow.supervisor.journal_mark
        sizes = {f: f.stat().st_size for f in tmp_path.iterdir()}
        time.sleep(3.0)
        # The server writes a record of its running transactions now and then, and no more than that is marked.
        assert flow.supervisor.journal_mark - mark < 1 << 20
        assert sum(f.stat().st_size for f in tmp_path.iterdir()) - sum(sizes.values()) < 4096
        assert lag(database) < 1 << 20
