"""Snapshots that are kept: exact, whatever time limits there are, and known to be lost when they are."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from penstock.errors import SnapshotLost, SourceFailed
from penstock.sources.postgres.load import hold
from tests.conftest import Database
from tests.processes import wait_until
from tests.sources.postgres.captured import Captured
from tests.sources.postgres.load.loads import Load, loading


@pytest.fixture
def database(each_database: Database) -> Database:
    """Every test here runs on each major version."""
    return each_database


def ids(load: Load, snapshot: str | None) -> list[int]:
    return sorted(row["id"] for chunk in load.plan() for row in load.rows(chunk, snapshot))


def test_the_slots_snapshot_and_its_stream_have_every_row_once_between_them(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v int); insert into t select g, 0 from generate_series(1, 50) g")
    stop = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            for i in range(51, 10_000):
                if stop.is_set():
                    return
                connection.execute(f"insert into t values ({i}, 0)".encode())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        captured = Captured(database, tmp_path / "journal", slot=f"s_{database.name}", export=True)
        assert captured.prepared.snapshot is not None and captured.source.snapshot_alive()
        with captured.running():
            wait_until(lambda: len(database.rows("select 1 from t offset 400 limit 1")) == 1)
            stop.set()
            writer.join()
            captured.drain()
            (tmp_path / "chunks").mkdir()
            with loading(database, tmp_path / "chunks") as load:
                read = ids(load, captured.prepared.snapshot)
                (chunk,) = load.plan()
                _, receipt = load.read(chunk, captured.prepared.snapshot)
                assert receipt.described == captured.prepared.described
                seen = {
                    x: seen
                    for batch in captured.batches()
                    for x, seen in zip(
                        batch.rows.column("id").to_pylist(),
                        load.reader.contains(receipt.described, batch.xid).to_pylist(),
                        strict=True,
                    )
                }
    finally:
        stop.set()
        writer.join()
    streamed = [e["row"]["id"] for e in captured.events("t")]
    assert sorted(read + streamed) == list(range(1, len(read) + len(streamed) + 1)) and len(read) >= 50 and streamed
    assert not any(seen[x] for x in streamed)


def test_a_prepare_that_finds_its_slot_exports_nothing_and_keeps_what_is_held(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); insert into t values (1)")
    with loading(database, tmp_path) as load:
        prepared = load.source.prepare(None, export=True)
        again = load.source.prepare(None, export=True)
        assert prepared.snapshot is not None and again.snapshot == prepared.snapshot
        database.execute("insert into t values (2)")
        assert ids(load, prepared.snapshot) == [1] and ids(load, None) == [1, 2]
        load.source.let_snapshot_go()
        assert load.source.prepare(None, export=True).snapshot is None
        with loading(database, tmp_path) as other:
            assert other.source.prepare(None, export=True).snapshot is None and not other.source.snapshot_alive()


def test_time_limits_of_role_and_database_end_neither_a_held_snapshot_nor_a_read(database: Database, tmp_path: Path) -> None:
    limits = ["statement_timeout", "lock_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout"]
    if database.server.run("select current_setting('server_version_num')::int >= 170000") == [(True,)]:
        limits.append("transaction_timeout")
    database.execute(
        "create table t (id int primary key, v text); insert into t select g, repeat('x', 999) from generate_series(1, 9999) g"
    )
    for name in limits:
        database.execute(f"alter database {database.name} set {name} = '300ms'")
    with loading(database, tmp_path) as load:
        prepared = load.source.prepare(None, export=True)
        held = load.source.hold_snapshot()
        ended = time.monotonic() + 1
        wait_until(lambda: time.monotonic() > ended)
        assert load.source.snapshot_alive() and held.alive()
        (chunk,) = load.plan()
        reader = type(load.reader)({**load.source.reading(rate=9_000_000)})
        receipt = reader.read(chunk, load.table("t"), prepared.snapshot, tmp_path / "slow")
        reader.close()
        assert receipt.rows == 9999 and receipt.seconds > 0.9
        held.close()


@pytest.mark.parametrize("which", ["slot", "held"])
def test_a_lost_session_is_noticed_and_its_snapshot_cannot_be_read(database: Database, tmp_path: Path, which: str) -> None:
    database.execute("create table t (id int primary key); insert into t values (1)")
    with loading(database, tmp_path) as load:
        prepared = load.source.prepare(None, export=True)
        held = load.source.hold_snapshot()
        name = prepared.snapshot if which == "slot" else held.name
        alive = load.source.snapshot_alive if which == "slot" else held.alive
        assert name is not None and alive()
        kind = "walsender" if which == "slot" else "client backend"
        state = "idle" if which == "slot" else "idle in transaction"
        database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and backend_type = %s"
            " and state like %s and application_name = 'penstock flow'",
            kind,
            f"{state}%",
        )
        wait_until(lambda: not alive())
        (chunk,) = load.plan()
        with pytest.raises(SnapshotLost):
            load.rows(chunk, name)
        # The reader goes on with another snapshot.
        assert load.rows(chunk, None) == [{"id": 1}]
        held.close()


def test_a_held_snapshot_is_what_it_describes_and_ends_when_it_is_closed(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); insert into t values (1)")
    with loading(database, tmp_path) as load:
        held = load.source.hold_snapshot()
        database.execute("insert into t values (2)")
        (chunk,) = load.plan()
        path, receipt = load.read(chunk, held.name)
        assert (receipt.rows, receipt.described) == (1, held.described) and path.exists()
        assert held.position <= receipt.position
        held.close()
        held.close()
        assert not held.alive()
        with pytest.raises(SnapshotLost):
            load.rows(chunk, held.name)


def test_a_slot_that_cannot_be_made_names_who_holds_it_up(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "CREATION_SECONDS", 1.0)
    database.execute("create table t (id int primary key)")
    with database.connect() as blocker, loading(database, tmp_path) as load:
        blocker.execute("begin; insert into t values (1)")
        with pytest.raises(SourceFailed, match=f"process {blocker.info.backend_pid} has had a transaction open"):
            load.source.prepare(None, export=True)
        assert not load.source.snapshot_alive()
        blocker.execute("rollback")
        assert load.source.prepare(None, export=True).snapshot is not None


@pytest.mark.parametrize(
    ("insert", "settled"),
    [(0x3000018, 0x3000018 - 24), (0x3000028, 0x3000000), (0x3002018, 0x3002000), (0x3002028, 0x3002028), (0x3000030, 0x3000030)],
)
def test_a_position_at_the_start_of_a_page_can_be_reached_by_a_quiet_log(insert: int, settled: int) -> None:
    assert hold.settled(insert, 16 << 20) == settled
