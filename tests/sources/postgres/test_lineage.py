"""Fail-over and restore: the flow goes on where the new log continues the journal, and stops with the gap named where not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.core.position import format_lsn, parse_lsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import FlowChanged, SlotMissing, SourceDiverged, SourceUnreachable
from penstock.sources.postgres.lineage import Lineage, compare
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.processes import wait_until
from tests.sources.postgres.supervised import Supervised

TABLE = "create table t (id int primary key)"
SETTINGS = {"fsync": "off", "wal_keep_size": "64MB", "hot_standby": "on"}


Maker = Callable[..., EmbeddedPostgres]


@pytest.fixture
def server() -> Iterator[Maker]:
    """Servers whose clusters outlive a stop, and go after the test."""
    with ExitStack() as stack:

        def make(**more: Any) -> EmbeddedPostgres:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-lineage-")))
            return EmbeddedPostgres(place, settings=SETTINGS, **more)

        yield make


def copy_data(origin: EmbeddedPostgres, copy: EmbeddedPostgres) -> None:
    """A cold copy of a stopped server's cluster."""
    owner = origin.data_directory.stat()
    shutil.rmtree(copy.data_directory, ignore_errors=True)
    shutil.copytree(origin.data_directory, copy.data_directory, symlinks=True)
    for root, folders, files in os.walk(copy.data_directory):
        for name in (".", *folders, *files):
            os.chown(Path(root, name), owner.st_uid, owner.st_gid, follow_symlinks=False)
    (copy.data_directory / "postmaster.pid").unlink(missing_ok=True)


@contextmanager
def standby_of(server: Maker, primary: EmbeddedPostgres, **settings: str) -> Iterator[EmbeddedPostgres]:
    """A standby that streams from the primary through a slot of its own."""
    primary.run("select pg_create_physical_replication_slot('standby')")
    standby = server(password=primary.password)
    primary.stop()
    copy_data(primary, standby)
    primary.start()
    conninfo = f"host=127.0.0.1 port={primary.port} user=postgres password={primary.password} dbname=postgres"
    extra = {"primary_conninfo": conninfo, "primary_slot_name": "standby", "hot_standby_feedback": "on", **settings}
    lines = "".join(f"{name} = '{value}'\n" for name, value in extra.items())
    standby.install("postgresql.conf", (standby.data_directory / "postgresql.conf").read_bytes() + lines.encode())
    standby.install("standby.signal", b"")
    with standby:
        yield standby


def doctor(primary: EmbeddedPostgres) -> str:
    """What a check of the source says about standbys."""
    source = PostgresSource("flow", PostgresOptions(dsn=primary.dsn()))
    try:
        (finding,) = [f for f in source.check() if f.subject == "standbys"]
    finally:
        source.close()
    assert finding.ok
    return finding.detail


def caught_up(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    ((head,),) = primary.run("select pg_current_wal_flush_lsn()::text")
    wait_until(lambda: standby.run(f"select pg_last_wal_replay_lsn() >= '{head}'") == [(True,)])


def promote(standby: EmbeddedPostgres) -> None:
    assert standby.run("select pg_promote()") == [(True,)]


@pytest.mark.slow
def test_a_flow_goes_on_at_a_promoted_standby_that_kept_its_slot(tmp_path: Path, server: Maker) -> None:
    with server() as primary:
        primary.run(TABLE)
        with standby_of(server, primary, sync_replication_slots="on") as standby:
            wait_until(lambda: primary.run("select 1 from pg_replication_slots where xmin is not null") != [])
            assert "name their slots in synchronized_standby_slots" in doctor(primary)
            primary.run("alter system set synchronized_standby_slots = 'standby'")
            primary.run("select pg_reload_conf()")
            wait_until(lambda: doctor(primary) == "1 connected")
            flow = Supervised(primary.dsn(), tmp_path)
            with flow.running():
                primary.run("insert into t values (1)")
                flow.drain()
                wait_until(
                    lambda: standby.run("select 1 from pg_replication_slots where synced and not temporary and failover") != [],
                    60,
                )
                primary.run("insert into t values (2)")
                flow.drain()
                caught_up(primary, standby)
            end = flow.memory["lineage"]["head"]
            primary.stop()
            promote(standby)
            standby.run("insert into t values (3)")
            flow.options = PostgresOptions(dsn=standby.dsn())
            with structlog.testing.capture_logs() as logs, flow.running():
                flow.drain()
                said = next(e["reason"] for e in logs if "fail-over" in e["event"])
            assert "from timeline 1 to 2 at" in said and "nothing is missing" in said
            assert flow.ids() == [1, 2, 3]
            assert (flow.memory["lineage"]["timeline"], flow.memory["lineage"]["head"] > end) == (2, True)
            # The next start is an ordinary one.
            with structlog.testing.capture_logs() as logs, flow.running():
                flow.drain()
            assert not [e for e in logs if "fail-over" in e["event"]]


@pytest.mark.slow
def test_a_promoted_standby_that_lacks_what_the_journal_has_stops_the_flow_and_names_it(tmp_path: Path, server: Maker) -> None:
    with server() as primary:
        primary.run(TABLE)
        with standby_of(server, primary) as standby:
            flow = Supervised(primary.dsn(), tmp_path)
            with flow.running():
                primary.run("insert into t values (1)")
                flow.drain()
                caught_up(primary, standby)
                standby.stop()
                primary.run("insert into t values (2)")
                flow.drain()
                assert flow.supervisor is not None
                mark = flow.supervisor.journal_mark
            primary.stop()
            standby.start()
            promote(standby)
            standby.run("insert into t values (10)")
            flow.options = PostgresOptions(dsn=standby.dsn())
            with pytest.raises(SourceDiverged) as refusal, flow.running():
                pass
            error = refusal.value
            assert error.facts["journal"] == format_lsn(mark) and "synchronized_standby_slots" in error.remedy
            assert (
                parse_lsn(str(error.facts["switch"])) < mark and f"({error.facts['switch']}, {format_lsn(mark)}]" in error.message
            )


@pytest.mark.slow
def test_a_promoted_standby_without_the_slot_says_how_slots_are_kept(tmp_path: Path, server: Maker) -> None:
    with server() as primary:
        primary.run(TABLE)
        with standby_of(server, primary) as standby:
            flow = Supervised(primary.dsn(), tmp_path, failover=False)
            with flow.running():
                primary.run("insert into t values (1)")
                flow.drain()
            caught_up(primary, standby)
            primary.stop()
            promote(standby)
            flow.options = PostgresOptions(dsn=standby.dsn())
            with pytest.raises(SlotMissing, match="sync_replication_slots"), flow.running():
                pass


@pytest.mark.slow
def test_a_server_restored_from_an_older_copy_stops_the_flow_and_names_what_it_lacks(tmp_path: Path, server: Maker) -> None:
    with server() as original, server() as backup:
        original.run(TABLE)
        flow = Supervised(original.dsn(), tmp_path)
        with flow.running():
            original.run("insert into t values (1)")
            flow.drain()
        backup.stop()
        original.stop()
        copy_data(original, backup)
        original.start()
        with flow.running():
            original.run("insert into t select generate_series(2, 5000)")
            flow.drain()
            assert flow.supervisor is not None
            mark = flow.supervisor.journal_mark
            # While the flow runs: the server goes, and comes back as it was.
            original.stop("immediate")
            copy_data(backup, original)
            original.start()
            error = flow.ended()
        assert isinstance(error, SourceDiverged) and "older copy" in error.message
        assert error.facts["journal"] == format_lsn(mark) and str(error.facts["head"]) in error.message


@pytest.mark.slow
def test_another_server_is_not_taken_for_the_flows_own(tmp_path: Path, server: Maker) -> None:
    with server() as original, server(own_identity=True) as other:
        for one in (original, other):
            one.run(TABLE)
        flow = Supervised(original.dsn(), tmp_path)
        with flow.running():
            flow.drain()
        flow.options = PostgresOptions(dsn=other.dsn())
        with pytest.raises(FlowChanged, match="system identifier"), flow.running():
            pass
        assert other.run("select 1 from pg_replication_slots") == []


ONE = Lineage("s", 1, (), 1000)
TWO = Lineage("s", 2, ((1, 1000),), 2000)


@pytest.mark.parametrize(
    ("before", "now", "journal", "told"),
    [
        (ONE, Lineage("s", 1, (), 1500), 1500, None),
        (ONE, TWO, 1000, "from timeline 1 to 2 at 0/3E8"),
        (ONE, Lineage("s", 4, ((1, 900), (2, 1000), (3, 1100)), 2000), 900, "from timeline 1 to 4 at 0/384"),
        (TWO, Lineage("s", 2, ((1, 1000),), 3000), 2500, None),
    ],
)
def test_a_log_that_continues_the_journal_is_gone_on_with(before: Lineage, now: Lineage, journal: int, told: str | None) -> None:
    said = compare(before, now, journal)
    assert said is told is None or (told is not None and said is not None and told in said)


@pytest.mark.parametrize(
    ("before", "now", "journal", "message"),
    [
        (ONE, TWO, 1001, r"it holds \(0/3E8, 0/3E9\] of the old timeline"),
        (ONE, Lineage("s", 1, (), 900), 1000, r"holds \(0/384, 0/3E8\] that it does not have"),
        # Two standbys were promoted, and both call themselves timeline 2.
        (
            TWO,
            Lineage("s", 2, ((1, 800),), 3000),
            900,
            "does not come after the flow's timeline 2, and has parted from it at 0/320",
        ),
        (TWO, ONE, 900, "timeline 1, which does not come after the flow's timeline 2"),
        (Lineage("s", 3, ((1, 10), (2, 20)), 100), TWO, 50, "does not come after"),
    ],
)
def test_a_log_that_does_not_continue_the_journal_is_refused(before: Lineage, now: Lineage, journal: int, message: str) -> None:
    with pytest.raises(SourceDiverged, match=message):
        compare(before, now, journal)


def test_a_standby_that_is_behind_is_waited_for() -> None:
    with pytest.raises(SourceUnreachable, match="replayed"):
        compare(ONE, Lineage("s", 1, (), 900, standby=True), 1000)
