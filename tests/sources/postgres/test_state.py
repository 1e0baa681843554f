"""The state table on a real server: what it says, when it is not kept, and that no flow publishes it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.errors import PenstockError
from penstock.sources.postgres import slot
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.state import StateTable
from tests.conftest import Database
from tests.sources.postgres.roles import Maker, bad, login

STATE = "SELECT flow, kind, name, origin FROM penstock.source_state ORDER BY kind"


@pytest.fixture
def database(each_database: Database) -> Database:
    """Every test here runs on each major version."""
    return each_database


def test_what_the_flow_makes_is_recorded_once(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make(publication_tables=["public.a"])
    source.prepare(None)
    expected = [("shop", "publication", "penstock_shop", "made"), ("shop", "slot", source.slot, "made")]
    assert database.rows(STATE) == expected
    before = database.rows("SELECT since, options, xmin::text FROM penstock.source_state ORDER BY kind")
    assert before[0][1]["tables"] == ["public.a"] and before[1][1]["plugin"] == "pgoutput"
    source.prepare(None)
    make().prepare(None)
    assert database.rows("SELECT since, options, xmin::text FROM penstock.source_state ORDER BY kind") == before


def test_what_a_dba_has_made_is_recorded_as_found(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION dba FOR TABLE a")
    source = make(publication="dba")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", source.slot)
    source.prepare(None)
    assert database.rows(STATE) == [("shop", "publication", "dba", "found"), ("shop", "slot", source.slot, "found")]


def test_no_flow_takes_a_state_table_by_itself(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    make().prepare(None)
    for options in ({}, {"publication_tables": ["*"]}, {"publication_schemas": ["*"]}, {"state_schema": "elsewhere"}):
        source = make(sync_publication=True, **options)
        source.prepare(None)
        assert [t.qualified for t in source.discover()] == ["public.a"]
    assert database.rows("SELECT tablename FROM pg_publication_tables") == [("a",)]


def test_hostile_names_of_schema_and_table(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make(state_schema='S "p; x', state_table="täble'; --", publication='pub"; x')
    source.prepare(None)
    assert database.rows("""SELECT name FROM "S ""p; x"."täble'; --" WHERE kind = 'publication'""") == [('pub"; x',)]
    assert bad(source.check()) == []


def test_without_the_right_to_make_it_the_flow_runs_and_says_so_once(database: Database, role: str, make: Maker) -> None:
    database.execute(
        f"CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION dba FOR TABLE a; ALTER ROLE {role} REPLICATION;"
        f"GRANT SELECT ON a TO {role}"
    )
    source = make(publication="dba", dsn=login(database, role))
    with capture_logs() as logged:
        source.prepare(None)
        source.prepare(None)
    assert [entry["event"] for entry in logged] == ["state table not kept"]
    findings = source.check()
    assert bad(findings) == []
    advice = next(f for f in findings if f.subject == "state table")
    assert advice.ok and advice.remedy.startswith("CREATE SCHEMA")
    database.execute(advice.remedy.partition(";")[0])
    after = make(publication="dba", dsn=login(database, role))
    assert not next(f for f in after.check() if f.subject == "state table").remedy
    after.prepare(None)
    # Who has made a slot before it could be recorded cannot be known any more.
    assert database.rows(STATE) == [("shop", "publication", "dba", "found"), ("shop", "slot", source.slot, "found")]


@pytest.mark.parametrize("there", ["schema", "table"])
def test_rights_on_what_a_dba_has_laid_out_are_named(database: Database, role: str, make: Maker, there: str) -> None:
    database.execute(f"CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION dba FOR TABLE a; ALTER ROLE {role} REPLICATION")
    database.execute("CREATE SCHEMA penstock")
    if there == "table":
        database.execute(
            "CREATE TABLE penstock.source_state (flow text, kind text, name text, origin text, since timestamptz DEFAULT now(),"
            " options jsonb, PRIMARY KEY (flow, kind, name))"
        )
    source = make(publication="dba", dsn=login(database, role))
    advice = next(f for f in source.check() if f.subject == "state table")
    assert advice.ok and advice.code == "source_rights"
    database.execute(advice.remedy.rpartition(";")[0])
    source.prepare(None)
    assert len(database.rows(STATE)) == 2


def test_a_table_of_that_name_that_is_another_is_left_alone(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA penstock; CREATE TABLE penstock.source_state (x int)")
    source = make()
    source.prepare(None)
    assert "state_table" in next(f for f in source.check() if f.subject == "state table").remedy
    assert database.rows("SELECT * FROM penstock.source_state") == []


def test_ensure_state_false_makes_nothing(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make(ensure_state=False)
    source.prepare(None)
    assert database.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'penstock'") == []
    assert "state table" not in {f.subject for f in source.check()}


def test_a_slot_made_just_before_a_crash_is_still_the_flows_own(
    database: Database, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    create = slot.create

    def create_and_die(*arguments: Any, **more: Any) -> None:
        create(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(slot, "create", create_and_die)
    with pytest.raises(KeyboardInterrupt):
        make().prepare(None)
    assert database.rows(STATE)[1][3] == "making"
    monkeypatch.undo()
    make().prepare(None)
    assert database.rows(STATE)[1][3] == "made"


def test_a_slot_that_could_not_be_made_leaves_no_row(database: Database, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    # A name that is taken between the look and the making.
    monkeypatch.setattr(slot, "find", lambda *_: None)
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", source.slot)
    with pytest.raises(PenstockError):
        source.prepare(None)
    assert [row[1] for row in database.rows(STATE)] == ["publication"]


def test_flows_that_start_at_the_same_moment_all_have_their_rows(database: Database) -> None:
    def record(number: int) -> None:
        control = Control(database.dsn, f"flow{number}")
        barrier.wait()
        StateTable(control, f"flow{number}", PostgresOptions(dsn=database.dsn)).record("slot", "s", "made")
        control.close()

    for _ in range(3):
        barrier = threading.Barrier(6)
        with ThreadPoolExecutor(6) as pool, capture_logs() as logged:
            list(pool.map(record, range(6)))
        assert logged == [] and len(database.rows(STATE)) == 6
        database.execute("DROP SCHEMA penstock CASCADE")


def test_rows_that_somebody_wrote_by_hand_stop_no_flow(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    source.prepare(None)
    for name in ('"', "a.b.c.d.e", 'x"y"', '"public"."gone"', "", '"public"."a"; drop table a', "publíc.ä"):
        database.execute("INSERT INTO penstock.source_state VALUES ('shop', 'left out', %s, 'made')", name)
    source.prepare(None)
    assert [t.name for t in source.discover()] == ["a"]
    assert bad(source.check()) == []


def test_the_flows_place_in_the_log_is_given_up_only_if_the_flow_has_made_it(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    source.prepare(None)
    assert source.release() == f"slot {source.slot}"
    assert source.release() is None
    assert database.rows("SELECT kind FROM penstock.source_state") == [("publication",)]
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", source.slot)
    assert source.release() is None
    assert database.rows("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", source.slot) == [(1,)]
    database.execute("SELECT pg_drop_replication_slot(%s)", source.slot)
