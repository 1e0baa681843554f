"""What happens to servers and networks: each is survived with nothing lost, or ends the flow with its own name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog

from penstock.core.position import format_lsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine import supervisor
from penstock.engine.watching import SourceWatch
from penstock.errors import (
    PenstockError,
    PublicationMissing,
    SlotLost,
    SlotMissing,
    SourceDatabaseMissing,
    SourceGap,
    SourceRefused,
)
from penstock.sources.postgres import slot
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.wire import ReplicationConnection
from tests.conftest import Database
from tests.processes import wait_until
from tests.sources.postgres.proxy import Proxy
from tests.sources.postgres.supervised import Supervised

TABLE = "create table t (id int primary key)"


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, to be stopped and spoiled."""
    with EmbeddedPostgres(settings={"fsync": "off"}) as made:
        made.run(TABLE)
        yield made


def supervised(database: Database, directory: Path, **more: Any) -> Supervised:
    return Supervised(database.dsn, directory, slot=f"s_{database.name}", publication=f"p_{database.name}", **more)


def cut_stream(database: Database, name: str) -> None:
    database.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s and active_pid is not null", name
    )


def retries(logs: list[Any]) -> list[str]:
    return [e["code"] for e in logs if e["event"].startswith("capture lost")]


@pytest.mark.slow
def test_a_server_that_restarts_is_found_again_and_nothing_is_lost(server: EmbeddedPostgres, tmp_path: Path) -> None:
    flow = Supervised(server.dsn(), tmp_path)
    with structlog.testing.capture_logs() as logs, flow.running():
        for number, mode in enumerate(("fast", "immediate", "fast")):
            server.run(f"insert into t values ({number * 10})")
            if number == 0:
                # Capture stands when the first one comes; the others may meet it on its way back.
                flow.drain()
            server.restart(mode)  # type: ignore[arg-type]
            server.run(f"insert into t values ({number * 10 + 1})")
        flow.drain()
    assert flow.ids() == [0, 1, 10, 11, 20, 21]
    first = next(e for e in logs if e["event"].startswith("capture lost"))
    assert first["remedy"].startswith("Nothing to do"), "an orderly shutdown is no matter of host, port and firewall"


@pytest.mark.slow
def test_a_server_that_shuts_down_is_let_go_while_a_destination_is_behind(server: EmbeddedPostgres, tmp_path: Path) -> None:
    """It would wait for its reader to confirm what no destination has."""
    flow = Supervised(server.dsn(), tmp_path, confirms=False)
    with structlog.testing.capture_logs() as logs, flow.running():
        assert flow.supervisor is not None
        watch = SourceWatch(flow.source, lambda _: None, lambda: None, interval=0.5, let_go=flow.supervisor.let_go)
        watch.start()
        server.run("insert into t values (0)")
        flow.drain()
        flow.supervisor.confirm(flow.slices()[-1].last)
        wait_until(lambda: flow.source.confirmed() >= flow.slices()[-1].last)
        server.run("insert into t values (1)")
        flow.drain()
        server.restart("fast")
        assert "source_stopping" in retries(logs)
        server.run("insert into t values (2)")
        wait_until(lambda: watch.trouble is None)
        flow.drain()
        watch.stop()
        watch.join()
    assert flow.ids() == [0, 1, 2]


@pytest.mark.slow
def test_an_unreachable_server_is_tried_again_with_growing_pauses(server: EmbeddedPostgres, tmp_path: Path) -> None:
    flow = Supervised(server.dsn(), tmp_path)
    with structlog.testing.capture_logs() as logs, flow.running():
        flow.drain()
        server.kill()
        wait_until(lambda: len(retries(logs)) >= 4)
        assert flow.supervisor is not None and flow.supervisor.error is None
        server.start()
        server.run("insert into t values (1)")
        flow.drain()
    assert set(retries(logs)) == {"source_unreachable"}
    pauses = [e["seconds"] for e in logs if e["event"].startswith("capture lost")]
    assert pauses[:4] == sorted(pauses[:4]) and pauses[3] > pauses[0]
    assert flow.ids() == [1]


@pytest.mark.slow
def test_a_slot_that_is_dropped_while_the_flow_runs_is_said_once_and_not_made_again(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    flow = supervised(database, tmp_path)
    with structlog.testing.capture_logs() as logs, flow.running():
        database.execute("insert into t values (1)")
        flow.drain()
        name = flow.source.slot
        mark = flow.supervisor.journal_mark if flow.supervisor else 0
        cut_stream(database, name)
        for _ in range(20):
            try:
                database.execute("select pg_drop_replication_slot(%s)", name)
                break
            except psycopg.errors.ObjectInUse:
                # Capture was there again before us.
                cut_stream(database, name)
        error = flow.ended()
    assert isinstance(error, SlotMissing) and format_lsn(mark) in error.message and error.retry == "manual"
    assert retries(logs)[-1] == "source_unreachable" and "slot_missing" not in retries(logs)
    with pytest.raises(SlotMissing), flow.running():
        pass
    assert database.rows("select 1 from pg_replication_slots where slot_name = %s", name) == []


@pytest.mark.slow
def test_a_slot_that_another_reader_has_taken_is_waited_for_and_a_moved_one_is_a_gap(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot, "RELEASE_SECONDS", 0.1)
    database.execute(TABLE)
    flow = supervised(database, tmp_path, confirms=False)
    with structlog.testing.capture_logs() as logs, flow.running():
        database.execute("insert into t values (1)")
        flow.drain()
        name, publication = flow.source.slot, flow.source.publication
        held: list[ReplicationConnection] = []
        # Between two attempts of ours the slot is free for a moment, and the other one gets it.
        wait_until(lambda: _takes(database, name, publication, held))
        reader = held[0]
        wait_until(lambda: "slot_in_use" in retries(logs))
        database.execute("insert into t values (2)")
        end = flow.source.head()
        reader.send_status(end, end, end, True)
        wait_until(lambda: flow.source.confirmed() >= end)
        reader.end()
        error = flow.ended()
    assert isinstance(error, SourceGap) and format_lsn(end) in error.message


def _takes(database: Database, name: str, publication: str, held: list[ReplicationConnection]) -> bool:
    reader = ReplicationConnection.connect(database.dsn, application_name="thief")
    cut_stream(database, name)
    try:
        reader.start_replication(name, 0, {"proto_version": "1", "publication_names": publication})
    except PenstockError:
        reader.close()
        return False
    held.append(reader)
    return True


@pytest.mark.slow
def test_a_publication_that_was_dropped_between_two_runs_stops_the_flow_until_it_is_made_again(
    database: Database, tmp_path: Path
) -> None:
    database.execute(TABLE)
    flow = supervised(database, tmp_path)
    with flow.running():
        flow.drain()
        name = flow.source.publication
    database.execute(f"drop publication {name}; insert into t values (1)")
    with pytest.raises(PublicationMissing, match=name), flow.running():
        pass
    database.execute(f"create publication {name} for table t with (publish_via_partition_root = true)")
    with flow.running():
        database.execute("insert into t values (2)")
        flow.drain()
    assert flow.ids() == [2]


@pytest.mark.slow
def test_a_database_that_was_renamed_is_named_and_goes_on_under_its_new_name(server: EmbeddedPostgres, tmp_path: Path) -> None:
    server.run("create database old")
    server.run(TABLE, "old")
    flow = Supervised(server.dsn("old"), tmp_path)
    with flow.running():
        server.run("insert into t values (1)", "old")
        flow.drain()
        server.run("alter database old with allow_connections false")
        server.run("select pg_terminate_backend(pid) from pg_stat_activity where datname = 'old'")
        flow.source.close()
        wait_until(lambda: not server.run("select 1 from pg_stat_activity where datname = 'old'"))
        server.run("alter database old rename to new")
        server.run("alter database new with allow_connections true")
        error = flow.ended()
    assert isinstance(error, SourceDatabaseMissing) and "old" in error.message and "renamed" in error.remedy
    server.run("insert into t values (2)", "new")
    flow.options = PostgresOptions(dsn=server.dsn("new"))
    with flow.running():
        flow.drain()
    assert flow.ids() == [1, 2]


def test_a_changed_password_leaves_the_stream_alone_and_is_one_clear_error_at_the_next_connection(
    database: Database, tmp_path: Path
) -> None:
    role = f"r_{database.name}"
    database.execute(f"{TABLE}; create role {role} superuser login password 'old'")
    try:
        dsn = database.server.dsn(database.name, user=role, password="old")
        flow = Supervised(dsn, tmp_path, slot=f"s_{database.name}")
        with structlog.testing.capture_logs() as logs, flow.running():
            flow.drain()
            database.execute(f"alter role {role} password 'new'; insert into t values (1)")
            flow.drain()
            cut_stream(database, flow.source.slot)
            error = flow.ended()
        assert isinstance(error, SourceRefused) and "password" in error.remedy and "'old'" not in error.message
        assert "source_refused" not in retries(logs)
        assert flow.ids() == [1]
    finally:
        database.execute(f"drop owned by {role}; drop role {role}")


@pytest.mark.parametrize("kept_in", ["passfile", "reference"])
def test_a_changed_password_is_picked_up_where_it_is_kept_outside_the_dsn(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_in: str
) -> None:
    monkeypatch.setattr(supervisor, "PAUSES", (0.1,))
    role, secret = f"r_{database.name}", tmp_path / "secret"
    database.execute(f"{TABLE}; create role {role} superuser login password 'old'")

    def keep(password: str) -> None:
        secret.write_text(f"*:*:*:*:{password}\n" if kept_in == "passfile" else password)
        secret.chmod(0o600)

    def options() -> PostgresOptions:
        if kept_in == "passfile":
            dsn = database.server.dsn(database.name, user=role, passfile=str(secret))
        else:
            dsn = database.server.dsn(database.name, user=role, password=secret.read_text())
        return PostgresOptions(dsn=dsn, slot=f"s_{database.name}")

    try:
        keep("old")
        flow = Supervised(options().dsn, tmp_path / "journal", fresh=options, slot=f"s_{database.name}")
        with structlog.testing.capture_logs() as logs, flow.running():
            flow.drain()
            database.execute(f"alter role {role} password 'new'; insert into t values (1)")
            cut_stream(database, flow.source.slot)
            # The server has the new password before the file has.
            wait_until(lambda: "source_refused" in retries(logs))
            keep("new")
            wait_until(lambda: any(e["event"] == "capture goes on" for e in logs))
            flow.drain()
        assert flow.ids() == [1]
    finally:
        database.execute(f"drop owned by {role}; drop role {role}")


@pytest.mark.slow
def test_a_network_that_swallows_everything_is_noticed_and_nothing_is_lost(server: EmbeddedPostgres, tmp_path: Path) -> None:
    with Proxy(server.port) as proxy:
        dsn = f"host=127.0.0.1 port={proxy.port} user=postgres password={server.password} dbname=postgres connect_timeout=2"
        flow = Supervised(dsn, tmp_path, receive_timeout="2s", heartbeat_interval="1s")
        with structlog.testing.capture_logs() as logs, flow.running():
            server.run("insert into t values (1)")
            flow.drain()
            proxy.stall()
            server.run("insert into t values (2)")
            wait_until(lambda: len(retries(logs)) >= 2, 60)
            proxy.drop()
            proxy.flow()
            flow.drain()
        assert set(retries(logs)) <= {"source_unreachable", "slot_in_use"}
    assert flow.ids() == [1, 2]


@pytest.mark.slow
def test_a_quiet_server_that_answers_is_not_taken_for_lost(server: EmbeddedPostgres, tmp_path: Path) -> None:
    flow = Supervised(server.dsn(), tmp_path, receive_timeout="1s", heartbeat_interval="60s")
    with structlog.testing.capture_logs() as logs, flow.running():
        flow.drain()
        process = flow.supervisor.process_id if flow.supervisor else 0
        server.run("select pg_sleep(4)")
        assert flow.supervisor is not None and flow.supervisor.process_id == process
    assert retries(logs) == []


@pytest.mark.slow
def test_a_walsender_that_works_in_silence_is_not_taken_for_lost(server: EmbeddedPostgres, tmp_path: Path) -> None:
    """The walsender is stopped where it stands, as a very long transaction would occupy it; the server answers otherwise."""
    flow = Supervised(server.dsn(), tmp_path, receive_timeout="1s", heartbeat_interval="60s")
    with structlog.testing.capture_logs() as logs, flow.running():
        flow.drain()
        ((walsender,),) = server.run("select active_pid from pg_replication_slots")
        os.kill(int(str(walsender)), signal.SIGSTOP)
        try:
            server.run("select pg_sleep(4)")
        finally:
            os.kill(int(str(walsender)), signal.SIGCONT)
        server.run("insert into t values (1)")
        flow.drain()
    assert retries(logs) == [] and flow.ids() == [1]


@pytest.mark.slow
def test_a_capture_that_stood_still_past_the_walsenders_timeout_connects_again_and_loses_nothing(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    server.run("alter system set wal_sender_timeout = '1s'")
    server.run("select pg_reload_conf()")
    flow = Supervised(server.dsn(), tmp_path)
    with structlog.testing.capture_logs() as logs, flow.running():
        server.run("insert into t values (1)")
        flow.drain()
        assert flow.supervisor is not None
        process = flow.supervisor.process_id
        os.kill(process, signal.SIGSTOP)
        server.run("insert into t values (2)")
        wait_until(lambda: not server.run("select 1 from pg_replication_slots where active"))
        os.kill(process, signal.SIGCONT)
        server.run("insert into t values (3)")
        flow.drain()
    assert set(retries(logs)) == {"source_unreachable"}
    assert flow.ids() == [1, 2, 3]


@pytest.mark.slow
def test_a_slot_that_the_server_gave_up_while_capture_stood_still_is_lost_and_not_tried_again(tmp_path: Path) -> None:
    settings = {"fsync": "off", "max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}
    with EmbeddedPostgres(settings=settings) as server:
        server.run(TABLE)
        flow = Supervised(server.dsn(), tmp_path)
        with structlog.testing.capture_logs() as logs, flow.running():
            flow.drain()
            assert flow.supervisor is not None
            process = flow.supervisor.process_id
            os.kill(process, signal.SIGSTOP)
            for _ in range(6):
                server.run("select pg_logical_emit_message(false, 'x', repeat('x', 20000000))")
                server.run("select pg_switch_wal()")
                server.run("checkpoint")
            os.kill(process, signal.SIGCONT)
            error = flow.ended()
        assert isinstance(error, SlotLost) and "slot_lost" not in retries(logs)
        assert "pg_drop_replication_slot" in error.remedy
