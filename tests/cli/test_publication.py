"""`penstock publication` against a real server."""

from __future__ import annotations

import shlex

import pytest

from penstock.core.naming import fits, listed
from penstock.errors import IdentityMissing, PublicationNarrowed
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.cli.objects import Commands
from tests.conftest import Database

WEIRD = '"We""ird; täble"'
TABLES = (
    'CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE "B" (id int PRIMARY KEY);'
    f"CREATE TABLE {WEIRD} (id int PRIMARY KEY);"
)


def test_a_publication_that_is_not_there_is_named_with_the_command_that_makes_it(commands: Commands) -> None:
    code, shown = commands.publication("list")
    assert code == 1 and "publication_missing" in shown and "penstock publication sync" in shown


def test_sync_makes_the_publication_and_brings_it_in_line(database: Database, commands: Commands) -> None:
    database.execute(TABLES)
    commands.write(publication_tables=["public.a"])
    assert "would be created" in commands.publication("sync", "--dry-run")[1]
    assert database.rows("SELECT 1 FROM pg_publication") == []
    assert commands.publication("sync")[0] == 0
    assert commands.published() == ["a"]
    assert database.rows("SELECT kind, name, origin FROM penstock.source_state") == [("publication", "penstock_shop", "made")]
    commands.write(publication_tables=["public.B", "We*"])
    commands.publication("sync", "--mode", "add")
    assert commands.published() == ["B", 'We"ird; täble', "a"]
    answer = commands.json("publication", "sync", "--flow", "FLOW", "--mode", "sync")
    assert answer["dropped"] == ["public.a"] and answer["added"] == [] and not answer["created"]
    assert commands.published() == ["B", 'We"ird; täble']
    assert "nothing to change" in commands.publication("sync", "--mode", "sync")[1]


def test_sync_refuses_a_pattern_that_fits_nothing(database: Database, commands: Commands) -> None:
    database.execute(f"{TABLES} CREATE PUBLICATION penstock_shop FOR TABLE a")
    commands.write(publication_tables=["nothing.*"])
    code, shown = commands.publication("sync", "--mode", "sync")
    assert code == 1 and "'nothing.*'" in shown and commands.published() == ["a"]


@pytest.mark.parametrize("name", ['public.We"ird; täble', 'We"ird; täble', WEIRD, f"public.{WEIRD}", f'"public".{WEIRD}', "We*"])
def test_hostile_names_are_added_and_removed_however_they_are_written(database: Database, commands: Commands, name: str) -> None:
    database.execute(f'{TABLES} CREATE PUBLICATION "pub; \'--" FOR TABLE a')
    commands.write(publication="pub; '--", publication_tables=["a"])
    code, shown = commands.publication("add", name)
    assert code == 0 and "+ public.We" in shown and commands.published() == ['We"ird; täble', "a"]
    assert "nothing to change" in commands.publication("add", name)[1]
    assert commands.publication("remove", name)[0] == 0
    assert commands.published() == ["a"]


def test_names_as_options_and_as_sql_write_them() -> None:
    assert fits("public.a", "public", "a") and fits("a", "public", "a") and fits("p*.?", "public", "a")
    assert fits('"B"', "public", "B") and fits('PUBLIC."B"', "public", "B") and not fits('"b"', "public", "B")
    assert fits('"odd s".*', "odd s", "B") and fits('"x".b?', "x", "b1") and not fits('"odd s"."*"', "odd s", "B")
    assert listed('a, b."x,""y",, c"') == ["a", 'b."x,""y"', 'c"'] and listed(None) == []
    assert fits("a[1]", "public", "a[1]") and fits("x.y.z", "x.y", "z") and not fits('"a', "public", "a")


def test_a_table_without_identity_is_refused_before_anything_is_touched(database: Database, commands: Commands) -> None:
    database.execute(f"{TABLES} CREATE TABLE n1 (v int); CREATE TABLE n2 (v int); CREATE PUBLICATION penstock_shop FOR TABLE a")
    before = database.rows("SELECT xmin::text FROM pg_publication")
    code, shown = commands.publication("add", "B", "n1")
    assert code == 1 and "identity_missing" in shown and 'ALTER TABLE "public"."n1" REPLICA IDENTITY FULL;' in shown
    code, shown = commands.publication("add", "n?")
    assert code == 1 and shown.count("REPLICA IDENTITY FULL;") == 2
    assert commands.published() == ["a"] and database.rows("SELECT xmin::text FROM pg_publication") == before
    database.execute("ALTER TABLE n1 REPLICA IDENTITY FULL")
    assert commands.publication("add", "B", "n1")[0] == 0 and commands.published() == ["B", "a", "n1"]


def test_an_insert_only_publication_takes_it(database: Database, commands: Commands) -> None:
    database.execute("CREATE TABLE n (v int); CREATE PUBLICATION penstock_shop WITH (publish = 'insert')")
    assert commands.publication("add", "n")[0] == 0 and commands.published() == ["n"]


def test_names_that_fit_nothing_are_all_said_with_the_reason_and_nothing_is_done(database: Database, commands: Commands) -> None:
    database.execute(
        f"{TABLES} CREATE VIEW v AS SELECT 1 AS x; CREATE UNLOGGED TABLE u (id int PRIMARY KEY);"
        "CREATE PUBLICATION penstock_shop FOR TABLE a"
    )
    for command in ("add", "remove"):
        code, shown = commands.publication(command, "B", "v", "zzz", "other.*")
        assert code == 1 and "tables_missing" in shown and "'zzz'" in shown and "'other.*'" in shown and "a view" in shown
    assert "unlogged" in commands.publication("add", "u")[1]
    assert commands.published() == ["a"]
    assert "'--odd'" in commands.publication("add", "--", "--odd")[1]


def test_what_the_next_start_will_undo_is_said(database: Database, commands: Commands) -> None:
    database.execute(TABLES)
    commands.write(publication_tables=["a", "B"], sync_publication=True, sync_publication_mode="sync", ensure_state=False)
    commands.publication("sync")
    assert "next start drops" in commands.publication("add", "We*")[1]
    assert "next start adds public.a again" in commands.publication("remove", "a")[1]


def test_what_was_taken_out_stays_out_until_it_is_put_back(database: Database, commands: Commands) -> None:
    database.execute(TABLES)
    commands.write(publication_tables=["*"])
    source = PostgresSource("shop", PostgresOptions(dsn=database.dsn, slot=commands.slot, publication_tables=("*",)))
    try:
        start = source.prepare(None).start
        # As while a worker runs: a table that goes by command is let go, one that goes in silence is not.
        assert source.look().error is None
        code, shown = commands.publication("remove", WEIRD)
        assert code == 0 and "until `penstock publication add` puts it back" in shown
        assert source.look().error is None
        source.prepare(start)
        assert commands.published() == ["B", "a"]
        assert {t.name for t in source.discover()} == {"B", "a"}
        assert "taken out by command: public.We" in commands("doctor", "--flow", "FLOW", "--state", str(commands.state))[1]
        assert "stays out" in commands.publication("sync")[1] and commands.published() == ["B", "a"]
        assert commands.publication("add", WEIRD)[0] == 0
        source.prepare(start)
        assert len(commands.published()) == 3 and source.look().error is None
        database.execute(f"ALTER PUBLICATION penstock_shop DROP TABLE {WEIRD}")
        assert isinstance(source.look().error, PublicationNarrowed)
    finally:
        source.close()


def test_a_table_is_not_taken_from_a_running_flow_that_could_not_know_why(database: Database, commands: Commands) -> None:
    database.execute(TABLES)
    commands.write(ensure_state=False)
    commands.publication("sync")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", commands.slot)
    with commands.reading():
        assert "slot_in_use" in commands.publication("remove", "a")[1]
    assert len(commands.published()) == 3
    assert commands.publication("remove", "a")[0] == 0


def test_the_state_table_is_never_added(database: Database, commands: Commands) -> None:
    database.execute(TABLES)
    commands.publication("sync")
    assert "source_state" not in commands.published()
    code, shown = commands.publication("add", "penstock.source_state")
    assert code == 1 and "state table" in shown
    assert "source_state" not in commands.publication("discover")[1]


def test_a_pattern_that_fits_the_state_table_too_means_the_others(database: Database, commands: Commands) -> None:
    database.execute(TABLES)
    commands.write(publication_tables=["a"])
    commands.publication("sync")
    code, shown = commands.publication("add", "*")
    assert code == 0, shown
    assert commands.published() == ["B", 'We"ird; täble', "a"]
    assert commands.publication("add", "*", "penstock.*")[0] == 1


def test_a_table_that_cannot_join_is_left_out_by_the_command_that_its_refusal_names(
    database: Database, commands: Commands
) -> None:
    database.execute(f'{TABLES} CREATE TABLE "no key; $x" (v int)')
    commands.write(publication_tables=["public.*"])
    options = PostgresOptions(dsn=database.dsn, slot=commands.slot, publication_tables=("public.*",))
    source = PostgresSource("shop", options)
    try:
        with pytest.raises(IdentityMissing) as refusal:
            source.prepare(None)
        command = shlex.split(refusal.value.remedy.rpartition("`")[0].rpartition("`")[2])
        assert command[:4] == ["penstock", "publication", "remove", "--flow"]
        # Before the publication is there, and once it is.
        code, shown = commands.publication("remove", command[5])
        assert code == 0 and "does without" in shown
        start = source.prepare(None).start
        assert len(commands.published()) == 3
        database.execute("CREATE TABLE later (v int)")
        with pytest.raises(IdentityMissing):
            source.prepare(start)
        assert "does without public.later" in commands.publication("remove", "later")[1]
        source.prepare(start)
        assert source.look().findings == ()
        assert commands.publication("remove", "later")[0] == 0
    finally:
        source.close()


@pytest.mark.parametrize("whole", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_whole_publications_say_why_a_table_cannot_go(database: Database, commands: Commands, whole: str) -> None:
    database.execute(f"{TABLES} CREATE PUBLICATION penstock_shop FOR {whole}")
    code, shown = commands.publication("remove", "a")
    assert code == 1 and "cannot be taken out" in shown
    assert "nothing to change" in commands.publication("add", "a")[1]
    by = {t["by"] for t in commands.json("publication", "list", "--flow", "FLOW")["tables"]}
    assert by == {"all" if whole == "ALL TABLES" else "schema"}


def test_list_shows_columns_filters_and_whose_it_is(database: Database, commands: Commands) -> None:
    database.execute(f'{TABLES} CREATE PUBLICATION penstock_shop FOR TABLE a (id), "B" WHERE (id > 5)')
    answer = commands.json("publication", "list", "--flow", "FLOW")
    assert not answer["made_by_flow"] and answer["operations"] == ["insert", "update", "delete", "truncate"]
    found = {t["name"]: (t["columns"], t["filter"]) for t in answer["tables"]}
    assert found == {"a": (["id"], None), "B": (None, "(id > 5)")}
    shown = commands.publication("list")[1]
    assert "made by others, owner postgres" in shown and "(id > 5)" in shown


def test_discover_says_what_each_table_is(database: Database, commands: Commands) -> None:
    database.execute(
        f"{TABLES} CREATE TABLE n (v int); CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (9999); INSERT INTO r SELECT generate_series(0, 999);"
        "INSERT INTO a SELECT generate_series(1, 5); ANALYZE; CREATE PUBLICATION penstock_shop FOR TABLE a"
    )
    commands.write(publication_tables=["a", "n", "zzz"])
    answer = commands.json("publication", "discover", "--flow", "FLOW")
    found = {t["name"]: t for t in answer["tables"]}
    assert set(found) == {"a", "B", 'We"ird; täble', "n", "r"}
    assert found["a"]["published"] and found["a"]["asked"] and found["a"]["rows"] == 5 and found["a"]["key"] == ["id"]
    assert found["r"]["partitioned"] and found["r"]["rows"] == 1000 and found["r"]["bytes"] > 1000 and not found["r"]["asked"]
    assert found["n"]["identity"] == "none" and found["n"]["remedy"].startswith("ALTER TABLE")
    assert "'zzz'" in answer["notes"][0]
    code, shown = commands.publication("discover")
    assert code == 0 and "REPLICA IDENTITY" in shown and "'zzz'" in shown
    assert [t["name"] for t in commands.json("publication", "discover", "--flow", "FLOW", "r*")["tables"]] == ["r"]
    assert commands.publication("discover", "nix")[0] == 1


def test_a_role_that_may_only_look_looks_and_is_told_what_it_lacks(database: Database, role: str, commands: Commands) -> None:
    database.execute(f"{TABLES} CREATE PUBLICATION penstock_shop FOR TABLE a; ALTER ROLE {role} REPLICATION")
    commands.write(dsn=database.server.dsn(database.name, user=role, password="x"))
    assert commands.publication("list")[0] == 0 and commands.publication("discover")[0] == 0
    for command, table, sql in (("add", "B", 'ADD TABLE "public"."B";'), ("remove", "a", 'DROP TABLE "public"."a";')):
        code, shown = commands.publication(command, table)
        assert code == 1 and "source_rights" in shown and sql in shown
    assert "source_rights" in commands.publication("sync")[1]
    assert commands.published() == ["a"]


def test_a_snapshot_of_a_flow_that_has_never_run_is_refused_and_nothing_is_published(commands: Commands) -> None:
    commands.database.execute("create table a (id int primary key)")
    code, shown = commands.publication("add", "a", "--snapshot", "--state", str(commands.directory / "nowhere"))
    assert code == 1 and "load_missing" in shown
    assert commands.published() == []
