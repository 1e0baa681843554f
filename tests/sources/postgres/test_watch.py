"""The watch over a running flow's server: lag and danger in figures, and nothing lost in silence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.core.position import parse_lsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.watching import SourceWatch
from penstock.errors import PublicationMissing, PublicationNarrowed, SlotLost, SlotMissing
from penstock.sources.base import SourceHealth
from penstock.sources.postgres import gauge, inventory, newcomers
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.gauge import Gauge
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.publishing import Publishing
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.processes import wait_until
from tests.sources.postgres.captured import Captured

Maker = Callable[..., PostgresSource]


@pytest.fixture
def database(each_database: Database) -> Database:
    """A fresh database on each major version in turn."""
    return each_database


@pytest.fixture
def make(database: Database) -> Iterator[Maker]:
    """Prepared sources of the flow `shop`, closed afterwards."""
    made: list[PostgresSource] = []

    def source(**options: Any) -> PostgresSource:
        options = {"dsn": database.dsn, "slot": f"s_{database.name}", **options}
        made.append(PostgresSource("shop", PostgresOptions(**options)))
        made[-1].prepare(None)
        return made[-1]

    yield source
    for one in made:
        one.close()


def reasons(health: SourceHealth) -> dict[str, str]:
    return {f.subject: f.detail for f in health.findings}


def head(database: Database) -> int:
    return parse_lsn(str(database.rows("select pg_current_wal_flush_lsn()::text")[0][0]))


def test_lag_and_retained_log_are_counted_in_bytes_and_seconds(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key, v text)")
    source = make()
    first = source.look()
    database.execute("insert into a select g, repeat('x', 1000) from generate_series(1, 2000) g")
    wait_until(lambda: source.look().lag_seconds > 0)
    health = source.look()
    assert health.lag_bytes > first.lag_bytes + 2_000_000 and health.retained_bytes >= health.lag_bytes
    assert health.head - health.confirmed == health.lag_bytes
    assert (health.state, health.safe_bytes, health.seconds_left, health.error) == ("reserved", None, None, None)


def test_the_gauge_knows_rate_and_age() -> None:
    meter = Gauge()
    for second in range(100):
        meter.note(float(second), second * 1000, confirmed=0)
        assert meter.rate() == (1000 if second >= 30 else 0)
    assert meter.age(99.0, confirmed=0) == 98
    assert meter.age(99.0, confirmed=50_000) == 48
    assert meter.age(99.0, confirmed=99_000) == 0


@pytest.mark.slow
def test_the_gauge_stays_small_whatever_the_lag() -> None:
    meter = Gauge()
    for second in range(20_000):
        meter.note(float(second), second * 1000, confirmed=0)
    assert meter.age(20_000.0, confirmed=0) > 19_990
    assert len(meter._samples) <= 2000


def test_a_look_at_a_quiet_server_changes_nothing_and_asks_little(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key)")
    source = make()
    source.look()
    before = database.rows("select oid, xmin from pg_publication_rel")
    assert source.look().findings == () and source.look().error is None
    assert database.rows("select oid, xmin from pg_publication_rel") == before


def test_a_dropped_publication_stops_the_flow_and_names_the_gap(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key)")
    source = make()
    source.look()
    good = head(database)
    database.execute("drop publication penstock_shop; insert into a values (1)")
    error = source.look().error
    assert isinstance(error, PublicationMissing)
    assert parse_lsn(str(error.facts["after"])) <= good
    # The remedy's statement is what mends it.
    database.execute(error.remedy.partition("(")[2].partition(";)")[0])
    source.prepare(good)
    health = source.look()
    assert health.error is None and "Re-sync needed" in reasons(health)["table public.a"]


def test_a_table_taken_out_of_the_publication_stops_the_flow_until_it_is_put_back_by_hand(
    database: Database, make: Maker
) -> None:
    database.execute('create table a (id int primary key); create table "B b" (id int primary key)')
    source = make()
    source.look()
    good = head(database)
    database.execute('alter publication penstock_shop drop table "B b"')
    error = source.look().error
    assert isinstance(error, PublicationNarrowed) and '"B b"' in error.message
    assert parse_lsn(str(error.facts["after"])) <= good
    # A restart must not put it back in silence.
    again = PostgresSource("shop", source.options)
    again.recall(source.remember())
    with pytest.raises(PublicationNarrowed, match='"B b" was taken out'):
        again.prepare(good)
    database.execute(error.remedy.partition(";")[0])
    again.prepare(good)
    assert "put back" in reasons(again.look())['table public."B b"']
    again.close()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("set (publish = 'insert')", "no longer sends update and delete and truncate"),
        ("set table a (id), b", "fewer columns of public.a"),
        ("set table a where (id > 5), b", "only some rows of public.a"),
        ("set table a", "public.b was taken out"),
    ],
)
def test_a_narrower_publication_stops_the_flow(database: Database, make: Maker, change: str, what: str) -> None:
    database.execute("create table a (id int primary key, v int); create table b (id int primary key)")
    source = make()
    source.look()
    database.execute(f"alter publication penstock_shop {change}")
    error = source.look().error
    assert isinstance(error, PublicationNarrowed) and what in error.message


def test_what_was_narrowed_while_the_flow_was_down_is_said_at_each_start_and_by_doctor(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key, v int); create table b (id int primary key)")
    database.execute("create publication p for table a, b")
    source = make(publication="p")
    good = head(database)
    database.execute("alter publication p set (publish = 'insert'); alter publication p set table a where (id > 5)")
    expected = {"no longer sends update", "some rows of public.a", "public.b was taken out"}
    memory = source.remember()
    for _ in range(2):
        again = PostgresSource("shop", source.options)
        again.recall(memory)
        advice = [f for f in again.check(good) if f.code == "publication_narrowed"]
        assert all(f.ok and f.remedy for f in advice) and len(advice) == 3
        with structlog.testing.capture_logs() as logs:
            again.prepare(good)
        said = [e for e in logs if "sends less" in e["event"]]
        assert {w for w in expected for e in said if w in e["reason"]} == expected
        assert all(e["missing"].startswith("such changes after ") for e in said)
        memory = json.loads(json.dumps(again.remember()))
        again.close()
    database.execute("alter publication p set (publish = 'insert, update, delete, truncate'); alter publication p set table a, b")
    again = PostgresSource("shop", source.options)
    again.recall(memory)
    assert not any(f.code == "publication_narrowed" for f in again.check(good))
    again.prepare(good)
    assert "wider" not in again.remember()
    again.close()


def test_doctor_says_what_the_next_start_refuses(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    source = make()
    database.execute("alter publication penstock_shop drop table b")
    again = PostgresSource("shop", source.options)
    again.recall(source.remember())
    (finding,) = [f for f in again.check(head(database)) if not f.ok]
    assert finding.code == "publication_narrowed" and "public.b was taken out" in finding.detail
    again.close()


@pytest.mark.parametrize("change", ["rename to b", "set schema s"])
def test_a_renamed_table_is_said_with_both_names(database: Database, make: Maker, change: str) -> None:
    database.execute("create schema s; create table a (id int primary key)")
    source = make()
    source.look()
    database.execute(f"alter table a {change}")
    with structlog.testing.capture_logs() as logs:
        assert source.look().error is None
        source.look()
    new = "public.b" if "rename" in change else "s.a"
    (said,) = [e for e in logs if "renamed" in e["event"]]
    assert (said["table"], said["renamed"]) == ("public.a", new) and "public.a" in said["remedy"]


def test_each_gap_of_a_table_is_reported(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    source = make()
    watch = SourceWatch(source, lambda memory: None, lambda: None, interval=0.05)

    def has(count: int) -> bool:
        return len([e for e in logs if "Re-sync needed" in e["event"]]) == count

    with structlog.testing.capture_logs() as logs:
        watch.start()
        for count in (1, 2):
            wait_until(lambda: watch.health is not None)
            database.execute("drop table a; create table a (id int primary key)")
            wait_until(partial(has, count))
        watch.stop()
        watch.join(10)
    assert has(2)


def test_a_wider_publication_is_no_trouble(database: Database, make: Maker) -> None:
    database.execute(
        "create table a (id int primary key, v int); create table b (id int primary key); create schema s;"
        "create publication p for table a (id) where (id > 5) with (publish = 'insert')"
    )
    source = make(publication="p")
    source.look()
    database.execute("alter publication p set table a; alter publication p set (publish = 'insert, update')")
    database.execute("alter publication p add table b; alter publication p add tables in schema s")
    assert source.look().error is None


def test_a_new_table_under_the_patterns_joins_at_once_and_its_rows_arrive(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key)")
    captured = Captured(database, tmp_path, publication_tables=["public.*"])
    with captured.running():
        captured.source.look()
        database.execute("create table b (id int primary key); create schema s; create table s.c (id int primary key)")
        with structlog.testing.capture_logs() as logs:
            captured.source.look()
        database.execute("insert into b values (7); insert into s.c values (8)")
        captured.drain()
        assert captured.source.look().findings == ()
    assert [e["row"]["id"] for e in captured.events("b")] == [7] and captured.events("c") == []
    assert [entry["table"] for entry in logs if "joined" in entry["event"]] == ["public.b"]


def test_a_new_table_does_not_join_when_the_flow_may_not_touch_the_publication(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key); create publication penstock_shop for table a")
    source = make(ensure_publication=False)
    database.execute("create table b (id int primary key)")
    assert source.look().error is None
    assert database.rows("select tablename from pg_publication_tables") == [("a",)]


def test_a_new_table_without_identity_stays_out_and_its_application_goes_on(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key)")
    source = make()
    source.look()
    database.execute("create table b (id int); insert into b values (1)")
    health = source.look()
    database.execute("update b set id = 2")
    (finding,) = health.findings
    assert (finding.subject, finding.code) == ("new table public.b", "identity_missing") and "does not join" in finding.detail
    database.execute(finding.remedy.partition(";")[0])
    assert source.look().findings == ()
    assert len(database.rows("select tablename from pg_publication_tables")) == 2


def test_a_new_table_that_could_not_join_is_tried_again(database: Database, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    role = f"r_{database.name}"
    database.execute(f"create role {role} login replication password 'x'; grant all on schema public to {role}")
    database.execute(f"grant create on database {database.name} to {role}")
    try:
        database.execute(f"create table a (id int primary key); alter table a owner to {role}")
        source = make(dsn=database.server.dsn(database.name, user=role, password="x"))
        source.look()
        database.execute("create table b (id int primary key)")
        (finding,) = source.look().findings
        assert (finding.subject, finding.code) == ("new table public.b", "source_rights")
        database.execute(f"alter table b owner to {role}")
        assert source.look().findings == (finding,)
        monkeypatch.setattr(newcomers, "AGAIN", 0.0)
        assert source.look().findings == ()
        assert len(database.rows("select tablename from pg_publication_tables")) == 2
        source.close()
    finally:
        database.execute(f"drop owned by {role}; drop role {role}")


def test_a_table_dropped_and_created_again_joins_and_is_said_to_need_a_load(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    captured = Captured(database, tmp_path)
    with captured.running():
        captured.source.look()
        database.execute("insert into a values (1)")
        database.execute("drop table a; create table a (id int primary key, v text)")
        health = captured.source.look()
        database.execute("insert into a values (2, 'x')")
        captured.drain()
    assert health.error is None and "dropped and created again" in reasons(health)["table public.a"]
    assert [e["row"] for e in captured.events("a")] == [{"id": 1}, {"id": 2, "v": "x"}]


def test_tables_that_join_are_told_once_before_they_count_and_those_that_a_command_added_are_not(
    database: Database, make: Maker
) -> None:
    told: list[str] = []

    def joining(tables: Sequence[tuple[str, str]], since: int) -> bool:
        (found,) = database.rows("select count(*) from pg_publication_tables where tablename = any(%s)", [t for _, t in tables])
        told.extend(f"{schema}.{table} {found[0]}" for schema, table in tables)
        return True

    database.execute("create table a (id int primary key)")
    source = make()
    source.joining = joining
    source.look()
    database.execute('create table b (id int primary key); create table "We""ird.x*" (id int primary key)')
    source.look()
    assert told == ['public.We"ird.x* 0', "public.b 0"]
    told.clear()
    database.execute("drop table a; create table a (id int primary key)")
    assert source.look().findings == (), "it is loaded, so nobody has to load it"
    assert told == ["public.a 0"]
    told.clear()
    publishing = Publishing(source.flow, source.options)
    publishing.remove(["b"])
    source.look()
    publishing.add(["b"])
    publishing.close()
    source.look()
    source.look()
    assert told == []
    again = make()
    database.execute("create table c (id int primary key)")
    again.joining = joining
    again.recall(source.remember())
    again.prepare(source.confirmed())
    assert told == ["public.c 0"]
    database.execute(f'create table d (id int primary key); alter publication "{source.publication}" add table d')
    again.look()
    assert told == ["public.c 0", "public.d 1"]


def test_a_table_dropped_during_the_very_look_is_not_taken_for_one_taken_out(
    database: Database, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    source = make()
    source.look()
    rows, drops = Control.rows, ["drop table a; create table a (id int primary key)"]

    def meanwhile(self: Control, sql: Any, values: Any = None) -> Any:
        if sql == inventory._SENT and drops:
            database.execute(drops.pop())
        return rows(self, sql, values)

    monkeypatch.setattr(Control, "rows", meanwhile)
    database.execute("create table c (id int primary key)")
    health = source.look()
    assert not drops and health.error is None
    assert "dropped and created again" in reasons(health)["table public.a"]


def test_a_dropped_table_is_said_and_the_flow_goes_on(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key)")
    source = make()
    source.look()
    database.execute("drop table b")
    with structlog.testing.capture_logs() as logs:
        assert source.look().error is None
    assert [e["table"] for e in logs if "dropped" in e["event"]] == ["public.b"]


PARTITIONED = """
create table root (id int primary key) partition by range (id);
create table one partition of root for values from (0) to (10);
create table two partition of root for values from (10) to (20);
create table three (id int primary key); insert into three values (25); insert into root values (1), (11);
analyze one; analyze two
"""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("alter table root attach partition three for values from (20) to (30)", "three was attached"),
        (
            "create table four (id int primary key); alter table root attach partition four for values from (30) to (40)",
            "four was attached",
        ),
        ("alter table root detach partition two", "two was detached"),
        ("drop table two", "two was dropped"),
        ("truncate two", "two was truncated"),
        ("truncate root", None),
        ("create table four partition of root for values from (30) to (40); insert into root values (31)", None),
        ("vacuum full one", None),
        ("insert into root values (2); delete from root where id = 2; analyze one", None),
    ],
)
def test_what_happens_to_partitions_behind_the_streams_back_is_said(
    database: Database, make: Maker, change: str, said: str | None
) -> None:
    database.execute(PARTITIONED)
    source = make(publication_tables=["public.root"])
    source.look()
    for statement in change.split(";"):
        database.execute(statement)
    health = source.look()
    assert health.error is None
    if said is None:
        assert health.findings == ()
    else:
        assert said in reasons(health)["table public.root"]
        assert source.look().findings == health.findings


def test_a_dropped_slot_is_noticed_while_the_flow_runs(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key)")
    source = make()
    source.look()
    database.execute("select pg_drop_replication_slot(%s)", source.slot)
    assert isinstance(source.look().error, SlotMissing)


@pytest.mark.slow
def test_a_slot_in_danger_is_warned_of_before_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge, "LEAST_WINDOW", 1e-6)
    settings = {"fsync": "off", "max_slot_wal_keep_size": "64MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}
    with EmbeddedPostgres(settings=settings) as server:
        server.run("create table a (id int primary key)")
        source = PostgresSource("shop", PostgresOptions(dsn=server.dsn()))
        source.prepare(None)
        calm = source.look()
        assert calm.safe_bytes is not None and calm.safe_bytes > 16 << 20 and calm.findings == ()
        server.run("select pg_logical_emit_message(true, 'x', repeat('x', 4000000))")
        health = source.look()
        assert health.seconds_left is not None and 0 < health.seconds_left < 60
        (danger,) = health.findings
        assert (danger.code, health.state, health.error) == ("slot_endangered", "reserved", None)
        assert "MiB more, which is" in danger.detail
        # At a standstill it is the room that counts.
        monkeypatch.setattr(gauge, "LEAST_WINDOW", 1e9)
        assert source.look().findings == ()
        while (source.look().safe_bytes or 0) >= 16 << 20:
            server.run("select pg_logical_emit_message(true, 'x', repeat('x', 10000000))")
        assert [f.code for f in source.look().findings] == ["slot_endangered"]
        for _ in range(6):
            server.run("select pg_logical_emit_message(false, 'x', repeat('x', 20000000))")
            server.run("select pg_switch_wal()")
            server.run("checkpoint")
        assert isinstance(source.look().error, SlotLost)
        source.close()


def test_the_watch_outlives_its_server_and_says_so_once() -> None:
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        server.run("create table a (id int primary key)")
        source = PostgresSource("shop", PostgresOptions(dsn=server.dsn()))
        source.prepare(None)
        memories: list[dict[str, Any]] = []
        watch = SourceWatch(source, memories.append, lambda: None, interval=0.05)
        with structlog.testing.capture_logs() as logs:
            watch.start()
            wait_until(lambda: watch.health is not None)
            server.restart("immediate")
            wait_until(lambda: watch.trouble is None and any("looked at again" in e["event"] for e in logs))
            watch.stop()
            watch.join(10)
        assert watch.error is None and memories[0]["lineage"]["timeline"] == 1
        assert len([e for e in logs if "cannot be looked at" in e["event"]]) == 1
        source.close()


def test_the_watch_ends_the_flow_when_the_source_says_so(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key)")
    ended: list[bool] = []
    watch = SourceWatch(make(), lambda memory: None, lambda: ended.append(True), interval=0.05)
    watch.start()
    wait_until(lambda: watch.health is not None)
    database.execute("drop publication penstock_shop")
    watch.join(20)
    assert ended and isinstance(watch.error, PublicationMissing)
