"""`penstock flow cleanup`: what the flow made goes, what others made stays, and nothing else is touched."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from penstock.engine.lease import holding
from penstock.engine.places import ledger_address
from penstock.journal.chunks import chunk_path
from penstock.journal.writer import JournalWriter
from penstock.ledger.ledger import Ledger
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.cli.objects import Commands
from tests.conftest import Database

Started = Callable[..., int]
OBJECTS = """
SELECT 'publication', pubname::text FROM pg_publication
UNION ALL SELECT 'slot', slot_name::text FROM pg_replication_slots WHERE database = current_database()
UNION ALL SELECT 'schema', nspname::text FROM pg_namespace WHERE oid > 16383 AND nspname !~ '^pg_' ORDER BY 1, 2
"""


@pytest.fixture
def started(database: Database, commands: Commands) -> Started:
    """Does on the server what a start of the flow does, and lays out a journal and ledger rows as a worker would."""

    def start(*, flow: str = "shop", local: bool = False, **options: Any) -> int:
        if flow == "shop":
            commands.write(**options)
        source = PostgresSource(flow, PostgresOptions(**{"dsn": database.dsn, "slot": commands.slot, **options}))
        try:
            prepared = source.prepare(None)
        finally:
            source.close()
        if local:
            journal = JournalWriter(commands.state / "journal" / flow)
            journal.begin(prepared.start)
            journal.close()
            ledger = Ledger(commands.state / "ledger.db")
            ledger.begin(flow, "log", prepared.start, ledger.take_over(flow, prepared.identity, "{}"))
            ledger.close()
        return prepared.start

    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    return start


def test_what_the_flow_made_goes_and_a_second_run_has_nothing_to_do(
    database: Database, commands: Commands, started: Started
) -> None:
    before = database.rows(OBJECTS)
    started()
    assert len(database.rows(OBJECTS)) == len(before) + 3
    code, shown = commands.cleanup("--yes")
    assert code == 0 and f"slot {commands.slot} removed" in shown and "publication penstock_shop removed" in shown
    assert "state table penstock.source_state removed" in shown and "schema penstock removed" in shown
    assert database.rows(OBJECTS) == before
    code, shown = commands.cleanup()
    assert code == 0 and "nothing to do" in shown
    assert not commands.state.exists()


def test_event_triggers_go_with_the_flow_that_made_them(database: Database, commands: Commands, started: Started) -> None:
    triggers = "SELECT evtname::text FROM pg_event_trigger"
    before = database.rows(OBJECTS)
    database.execute("CREATE FUNCTION f() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'")
    database.execute("CREATE EVENT TRIGGER theirs ON ddl_command_end EXECUTE FUNCTION f()")
    started(capture_ddl=True)
    code, shown = commands.cleanup("--yes")
    assert code == 0 and "event trigger penstock_shop_ddl_drop removed" in shown
    assert "function penstock.penstock_shop_ddl removed" in shown and "schema penstock removed" in shown
    assert database.rows(triggers) == [("theirs",)] and database.rows(OBJECTS) == before
    assert "nothing to do" in commands.cleanup()[1]


def test_what_a_dba_made_stays_and_is_said_to(database: Database, commands: Commands, started: Started) -> None:
    database.execute("CREATE PUBLICATION dba FOR TABLE a; CREATE SCHEMA penstock")
    database.execute(
        "CREATE TABLE penstock.source_state (flow text, kind text, name text, origin text, since timestamptz DEFAULT now(),"
        " options jsonb, PRIMARY KEY (flow, kind, name))"
    )
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", commands.slot)
    before = database.rows(OBJECTS)
    started(publication="dba")
    code, shown = commands.cleanup("--yes")
    assert code == 0 and f"slot {commands.slot} stays: made by others" in shown and "publication dba stays" in shown
    assert database.rows(OBJECTS) == before
    assert database.rows("SELECT * FROM penstock.source_state") == []
    # Their slot is no longer recorded, but it is still theirs.
    code, shown = commands.cleanup("--yes")
    assert code == 0 and "nothing to do" in shown and f"slot {commands.slot} stays" in shown
    assert database.rows(OBJECTS) == before


def test_other_flows_and_other_things_in_the_schema_stay(database: Database, commands: Commands, started: Started) -> None:
    started()
    started(flow="other", slot=f"other_{database.name}")
    commands.cleanup("--yes")
    assert database.rows("SELECT DISTINCT flow FROM penstock.source_state") == [("other",)]
    assert database.rows(OBJECTS)[0] == ("publication", "penstock_other")
    started()
    database.execute("DELETE FROM penstock.source_state WHERE flow = 'other'; CREATE VIEW penstock.theirs AS SELECT 1 AS x")
    code, shown = commands.cleanup("--yes")
    assert code == 0 and "state table" in shown and "schema penstock" not in shown
    assert database.rows("SELECT * FROM penstock.theirs") == [(1,)]


def test_names_that_the_flow_had_before_are_cleaned_up_too(database: Database, commands: Commands, started: Started) -> None:
    before = database.rows(OBJECTS)
    started(publication='old "pub"; --', slot=f"old_{database.name}", state_schema='S "x; y', state_table="ß'")
    started(state_schema='S "x; y', state_table="ß'")
    answer = commands.json("flow", "cleanup", "FLOW", "--state", str(commands.state), "--yes")
    assert {(o["kind"], o["name"]) for o in answer["removed"]} >= {
        ("publication", 'old "pub"; --'),
        ("publication", "penstock_shop"),
        ("slot", f"old_{database.name}"),
        ("slot", commands.slot),
    }
    assert database.rows(OBJECTS) == before


def test_a_running_flow_is_not_cleaned_up(database: Database, commands: Commands, started: Started) -> None:
    started()
    before = database.rows(OBJECTS)
    with commands.reading() as pid:
        code, shown = commands.cleanup("--yes", "--remove-state")
        assert code == 1 and "slot_in_use" in shown and str(pid) in shown
    with holding(ledger_address(commands.state), "shop", "worker"):
        code, shown = commands.cleanup("--yes")
        assert code == 1 and "flow_running" in shown and str(os.getpid()) in shown
    assert database.rows(OBJECTS) == before


def test_a_slot_of_others_that_is_being_read_is_a_running_flow_too(
    database: Database, commands: Commands, started: Started
) -> None:
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", commands.slot)
    started()
    with commands.reading():
        assert "slot_in_use" in commands.cleanup("--yes")[1]
    assert commands.cleanup("--yes")[0] == 0


def test_no_is_an_answer(database: Database, commands: Commands, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    started()
    before = database.rows(OBJECTS)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, shown = commands.cleanup()
    assert code == 1 and f"- slot {commands.slot}" in shown and "is lost with it" in shown
    assert database.rows(OBJECTS) == before
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert commands.cleanup()[0] == 0 and database.rows(OBJECTS) != before


def test_local_state_is_named_and_removed_only_when_asked(commands: Commands, started: Started) -> None:
    started(local=True)
    started(local=True, flow="other", slot=commands.slot + "_o")
    journal = commands.state / "journal" / "shop"
    code, shown = commands.cleanup("--yes")
    assert code == 0 and "local state stays (--remove-state removes it)" in shown and str(journal) in shown
    assert journal.exists()
    code, shown = commands.cleanup("--yes", "--remove-state")
    assert code == 0 and "local state removed" in shown and not journal.exists()
    ledger = Ledger(commands.state / "ledger.db")
    assert ledger.checkpoints("shop") == {} and ledger.identity("shop") is None and ledger.checkpoints("other")
    ledger.close()
    assert (commands.state / "journal" / "other").exists()
    assert commands.cleanup("--remove-state") == (0, "shop: nothing to do on the server\n")


def test_the_rows_that_loads_have_left_go_with_the_journal_and_one_elsewhere_is_named(
    commands: Commands, started: Started
) -> None:
    started(local=True)
    journal = commands.state / "journal" / "shop"
    left = chunk_path(journal, 1, "0.copy")
    left.parent.mkdir(parents=True)
    left.write_text("a row")
    assert commands.cleanup("--yes", "--remove-state")[0] == 0 and not journal.exists()
    started(local=True)
    shutil.rmtree(journal)
    ledger = Ledger(commands.state / "ledger.db")
    entry = ledger.flows.find("shop")
    assert entry is not None
    ledger.place_journal("shop", entry.generation, "db2:/var/penstock/journal/shop")
    ledger.close()
    code, shown = commands.cleanup("--yes", "--remove-state")
    assert code == 0 and "journal db2:/var/penstock/journal/shop stays: it is not here" in shown


def test_a_journal_in_a_directory_of_the_users_takes_only_its_own_files_along(commands: Commands, started: Started) -> None:
    start = started()
    place = commands.directory / "mine"
    raw = yaml.safe_load(commands.file.read_text())
    commands.file.write_text(yaml.safe_dump({**raw, "config": {"journal": {"url": str(place)}}}))
    journal = JournalWriter(place)
    journal.begin(start)
    journal.close()
    (place / "notes.txt").write_text("keep")
    chunk_path(place, 7, "0.copy").parent.mkdir(parents=True)
    (place / "chunks" / "mine").mkdir()
    assert commands.cleanup("--yes", "--remove-state")[0] == 0
    assert sorted(p.name for p in place.rglob("*")) == ["chunks", "mine", "notes.txt"]


def test_a_slot_that_nothing_records_is_left_with_the_command_that_drops_it(
    database: Database, commands: Commands, started: Started
) -> None:
    started(ensure_state=False)
    code, shown = commands.cleanup("--yes")
    assert code == 0 and "publication penstock_shop removed" in shown and "penstock slot drop" in shown
    assert commands.slots("drop", "--yes")[0] == 0
    assert "stays" not in commands.cleanup("--yes")[1]


def test_a_role_with_few_rights_cleans_up_what_it_made_and_names_what_it_may_not(
    database: Database, role: str, commands: Commands, started: Started
) -> None:
    database.execute(
        f"CREATE PUBLICATION dba FOR TABLE a; ALTER ROLE {role} REPLICATION; CREATE SCHEMA mine AUTHORIZATION {role}"
    )
    dsn = database.server.dsn(database.name, user=role, password="x")
    started(dsn=dsn, publication="dba", state_schema="mine")
    code, shown = commands.cleanup("--yes")
    assert code == 0 and f"slot {commands.slot} removed" in shown and "publication dba stays" in shown
    assert database.rows("SELECT 1 FROM pg_publication") == [(1,)]
    assert database.rows("SELECT 1 FROM pg_tables WHERE schemaname = 'mine'") == []
    started()
    commands.write(dsn=dsn)
    code, shown = commands.cleanup("--yes")
    assert code == 1 and "source_rights" in shown and 'DROP PUBLICATION "penstock_shop";' in shown


def test_doctor_knows_the_journal(database: Database, commands: Commands, started: Started) -> None:
    started(local=True)
    doctor = ("doctor", "--flow", "FLOW", "--state", str(commands.state))
    assert commands(*doctor)[0] == 0
    commands.cleanup("--yes")
    code, shown = commands(*doctor)
    assert code == 1 and "[slot_missing]" in shown and "[publication_missing]" in shown and "will be created" not in shown
    assert "penstock flow cleanup FILE --remove-state" in shown
    # The ledger alone also knows that the flow has run.
    for path in (commands.state / "journal" / "shop").iterdir():
        path.unlink()
    assert "[slot_missing]" in commands(*doctor)[1]
    commands.cleanup("--yes", "--remove-state")
    code, shown = commands(*doctor)
    assert code == 0 and shown.count("will be created") == 2


def test_doctor_gives_advice_without_failing(database: Database, role: str, commands: Commands) -> None:
    database.execute(f"CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION dba FOR TABLE a; ALTER ROLE {role} REPLICATION")
    commands.write(dsn=database.server.dsn(database.name, user=role, password="x"), publication="dba")
    code, shown = commands("doctor", "--flow", "FLOW", "--state", str(commands.state))
    assert code == 0 and "! state table" in shown and "→ CREATE SCHEMA" in shown and "✗" not in shown
