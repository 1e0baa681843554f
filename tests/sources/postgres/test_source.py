"""The driver half of the PostgreSQL source against a real server: what it refuses, what it makes, what it leaves alone."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock.core.position import format_lsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import (
    IdentityMissing,
    PenstockError,
    PublicationMissing,
    SlotInUse,
    SlotLost,
    SlotMissing,
    SourceDatabaseMissing,
    SourceError,
    SourceGap,
    SourceRefused,
    SourceRights,
    SourceSettings,
    SourceUnreachable,
    TablesMissing,
)
from penstock.sources.base import Batching
from penstock.sources.postgres import slot
from penstock.sources.postgres.options import PostgresOptions, default_name
from penstock.sources.postgres.source import PostgresSource
from penstock.sources.postgres.wire import ReplicationConnection
from tests.conftest import Database
from tests.sources.postgres.roles import Maker, bad, login

WEIRD = '"We""ird; table"'


def test_a_sound_database_has_no_bad_finding(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    findings = make().check()
    assert bad(findings) == []
    subjects = {f.subject for f in findings}
    assert {"server", "login", "version", "wal_level", "replication right", "tables", "replica identity"} <= subjects


def test_check_and_discover_change_nothing(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    source.check()
    source.discover()
    assert database.rows("SELECT 1 FROM pg_publication") == []
    assert database.rows("SELECT 1 FROM pg_replication_slots WHERE database = %s", database.name) == []


def test_prepare_makes_publication_and_slot_once(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    first, second = source.prepare(None), source.prepare(None)
    assert (first.identity, first.start) == (second.identity, second.start)
    assert len(first.identity) == 8 and int(first.identity, 16) >= 0
    found = database.rows("SELECT plugin, temporary, failover FROM pg_replication_slots WHERE slot_name = %s", source.slot)
    assert found == [("pgoutput", False, True)]
    assert database.rows("SELECT pubname, pubviaroot, puballtables FROM pg_publication") == [("penstock_shop", True, False)]
    assert source.confirmed() == first.start <= source.head()
    again = source.prepare(first.start)
    assert (again.identity, again.start) == (first.identity, first.start)


def test_a_publication_that_is_gone_under_a_running_flow_is_not_made_again_in_silence(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    start = source.prepare(None).start
    database.execute(f"DROP PUBLICATION {source.publication}")
    with pytest.raises(PublicationMissing):
        source.prepare(start)
    assert database.rows("SELECT 1 FROM pg_publication") == []


def test_identity_is_that_of_the_database(database: Database, postgres: EmbeddedPostgres, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    other = Database(postgres, f"{database.name}_b")
    postgres.run(f"CREATE DATABASE {other.name}")
    try:
        other.execute("CREATE TABLE a (id int PRIMARY KEY)")
        source = make(dsn=other.dsn, slot=f"s_{other.name}")
        assert make().prepare(None).identity != source.prepare(None).identity
        source.close()
        postgres.run(f"SELECT pg_drop_replication_slot('{source.slot}')")
    finally:
        postgres.run(f"DROP DATABASE {other.name} WITH (FORCE)")


def test_hostile_names_are_published_and_described(database: Database, make: Maker) -> None:
    database.execute(f'CREATE SCHEMA "S p"; CREATE TABLE "S p".{WEIRD} ("Key ""k""" int PRIMARY KEY, "välue" text)')
    source = make(publication='pub"; DROP TABLE x', publication_tables=['S p.We"ird; table'])
    assert bad(source.check()) == []
    source.prepare(None)
    (table,) = source.discover()
    assert (table.schema, table.name, table.key) == ("S p", 'We"ird; table', ('Key "k"',))
    assert [c.name for c in table.columns] == ['Key "k"', "välue"]


@pytest.mark.parametrize(
    ("table", "fix"),
    [
        (f"CREATE TABLE {WEIRD} (v int)", f'ALTER TABLE "public".{WEIRD} REPLICA IDENTITY FULL;'),
        (
            f"CREATE TABLE {WEIRD} (v int NOT NULL CONSTRAINT u UNIQUE)",
            f'ALTER TABLE "public".{WEIRD} REPLICA IDENTITY USING INDEX "u";',
        ),
        (
            f"CREATE TABLE {WEIRD} (v int PRIMARY KEY); ALTER TABLE {WEIRD} REPLICA IDENTITY NOTHING",
            f'ALTER TABLE "public".{WEIRD} REPLICA IDENTITY DEFAULT;',
        ),
        (f"CREATE TABLE {WEIRD} (v int PRIMARY KEY DEFERRABLE)", f'ALTER TABLE "public".{WEIRD} REPLICA IDENTITY FULL;'),
        (
            "CREATE TABLE root (v int) PARTITION BY LIST (v); CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1)",
            'ALTER TABLE "public"."leaf" REPLICA IDENTITY FULL;',
        ),
    ],
    ids=["nothing", "unique index", "identity nothing", "deferrable key", "partition"],
)
def test_a_table_whose_updates_would_fail_is_refused_before_anything_is_touched(
    database: Database, table: str, fix: str, make: Maker
) -> None:
    database.execute(table)
    source = make()
    with pytest.raises(IdentityMissing) as refusal:
        source.prepare(None)
    assert refusal.value.remedy.startswith(fix)
    assert database.rows("SELECT 1 FROM pg_publication") == []
    database.execute(fix)
    source.prepare(None)
    assert bad(source.check()) == []


def test_an_insert_only_publication_takes_tables_without_identity(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE log (v int); CREATE PUBLICATION penstock_shop FOR TABLE log WITH (publish = 'insert')")
    source = make()
    source.prepare(None)
    assert bad(source.check()) == []
    assert [t.key for t in source.discover()] == [()]


def test_what_others_published_without_identity_is_shown_but_not_refused(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE log (v int); CREATE PUBLICATION penstock_shop FOR TABLE log")
    source = make()
    source.prepare(None)
    assert [f.code for f in bad(source.check())] == ["identity_missing"]


def test_keys_follow_the_replica_identity(database: Database, make: Maker) -> None:
    database.execute(
        """
        CREATE TABLE a (x int, y int, PRIMARY KEY (y, x));
        CREATE TABLE b (x int PRIMARY KEY, y int NOT NULL); CREATE UNIQUE INDEX by_y ON b (y);
        ALTER TABLE b REPLICA IDENTITY USING INDEX by_y;
        CREATE TABLE c (x int PRIMARY KEY, y int); ALTER TABLE c REPLICA IDENTITY FULL;
        CREATE TABLE d (x int); ALTER TABLE d REPLICA IDENTITY FULL;
        CREATE TABLE e (x int, y int, PRIMARY KEY (x) INCLUDE (y));
        """
    )
    assert {t.name: t.key for t in make().discover()} == {
        # In the table's order, as the stream tells it, whatever the index has.
        "a": ("x", "y"),
        "b": ("y",),
        "c": ("x",),
        "d": (),
        "e": ("x",),
    }


def test_columns_are_those_of_the_stream(database: Database, make: Maker) -> None:
    database.execute(
        """
        CREATE TABLE a (id int PRIMARY KEY, gone int, twice int GENERATED ALWAYS AS (id * 2) STORED, amount numeric(10,2));
        ALTER TABLE a DROP COLUMN gone;
        CREATE TABLE b (id int PRIMARY KEY, secret text, shown text);
        CREATE PUBLICATION penstock_shop FOR TABLE a, b (id, shown);
        """
    )
    found = {t.name: [(c.name, c.native) for c in t.columns] for t in make().discover()}
    assert found == {"a": [("id", "integer"), ("amount", "numeric(10,2)")], "b": [("id", "integer"), ("shown", "text")]}


def test_a_generated_column_is_there_when_the_publication_sends_it(database: Database, make: Maker) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);"
        "CREATE PUBLICATION penstock_shop FOR TABLE a WITH (publish_generated_columns = stored)"
    )
    (table,) = make().discover()
    assert [c.name for c in table.columns] == ["id", "twice"]


def test_partitioned_tables_are_taken_by_their_root(database: Database, make: Maker) -> None:
    database.execute(
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9)"
    )
    source = make()
    source.prepare(None)
    assert [t.name for t in source.discover()] == ["root"]
    source = make(publication_tables=["public.leaf"])
    assert "partition" in next(f.detail for f in bad(source.check()))


def test_patterns_choose_tables_and_schemas(database: Database, make: Maker) -> None:
    database.execute(
        "CREATE SCHEMA sales; CREATE SCHEMA other; CREATE TABLE sales.a (id int PRIMARY KEY);"
        "CREATE TABLE other.b (id int PRIMARY KEY); CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE x (id int PRIMARY KEY)"
    )
    source = make(publication_tables=["public.ord*"], publication_schemas=["sal?s"])
    assert [t.qualified for t in source.discover()] == ["public.orders", "sales.a"]


def test_a_new_table_joins_the_flows_own_publication(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    source.prepare(None)
    database.execute("CREATE TABLE b (id int PRIMARY KEY)")
    assert [t.name for t in source.discover()] == ["a", "b"]
    source.prepare(None)
    assert database.rows("SELECT tablename FROM pg_publication_tables ORDER BY 1") == [("a",), ("b",)]


def test_somebody_elses_publication_is_taken_as_it_is(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE a")
    source = make(publication="p")
    source.prepare(None)
    assert [t.name for t in source.discover()] == ["a"]
    assert database.rows("SELECT tablename FROM pg_publication_tables") == [("a",)]
    asked = make(publication="p", publication_tables=["b"])
    asked.prepare(None)
    assert len(database.rows("SELECT tablename FROM pg_publication_tables")) == 2


def test_a_publication_that_may_not_be_made_is_asked_for_in_sql(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make(ensure_publication=False)
    with pytest.raises(PublicationMissing) as refusal:
        source.prepare(None)
    statement = refusal.value.remedy.rpartition(";")[0]
    assert statement.startswith('CREATE PUBLICATION "penstock_shop" FOR TABLE "public"."a"')
    database.execute(statement)
    source.prepare(None)


def test_an_empty_database_and_a_pattern_without_table_are_refused(database: Database, make: Maker) -> None:
    with pytest.raises(TablesMissing):
        make().prepare(None)
    with pytest.raises(TablesMissing, match=r"'shop\.\*'"):
        make(publication_tables=["shop.*"]).prepare(None)
    with pytest.raises(TablesMissing):
        make(validate_replication=False).prepare(None)


def test_missing_rights_come_all_at_once_and_their_grants_mend_them(database: Database, role: str, make: Maker) -> None:
    database.execute(f"CREATE ROLE owner_{role}; GRANT ALL ON SCHEMA public TO owner_{role}")
    try:
        database.execute(f"CREATE TABLE a (id int PRIMARY KEY); ALTER TABLE a OWNER TO owner_{role}")
        source = make(dsn=login(database, role))
        problems = bad(source.check())
        assert {p.code for p in problems} == {"source_rights"} and len(problems) == 3
        with pytest.raises(SourceRights, match="2 more problems"):
            source.prepare(None)
        for problem in problems:
            database.execute(problem.remedy.partition(";")[0])
        source.close()
        assert bad(source.check()) == []
        source.prepare(None)
        source.close()
    finally:
        database.execute(f"REVOKE owner_{role} FROM {role}; DROP OWNED BY owner_{role}; DROP ROLE owner_{role}")


def test_a_superusers_tables_are_not_opened_by_granting_the_superuser(database: Database, role: str, make: Maker) -> None:
    database.execute(f"CREATE TABLE a (id int PRIMARY KEY); ALTER ROLE {role} REPLICATION")
    source = make(dsn=login(database, role))
    problem = next(p for p in bad(source.check()) if "owner" in p.detail)
    assert "GRANT" not in problem.remedy and "CREATE PUBLICATION" in problem.remedy
    database.execute(problem.remedy.partition(": ")[2])
    assert bad(source.check()) == []
    source.prepare(None)
    source.close()


def test_settings_of_role_and_database_do_not_reach_the_session(database: Database, role: str, make: Maker) -> None:
    database.execute(
        f"ALTER ROLE {role} SUPERUSER; ALTER ROLE {role} SET default_transaction_read_only = on;"
        f"ALTER ROLE {role} SET statement_timeout = '1ms'; ALTER ROLE {role} SET search_path = hostile;"
        f"CREATE SCHEMA hostile; CREATE FUNCTION hostile.pg_has_role(oid, text) RETURNS bool LANGUAGE sql AS 'SELECT false';"
        "CREATE TABLE a (id int PRIMARY KEY)"
    )
    source = make(dsn=login(database, role))
    source.prepare(None)
    assert bad(source.check()) == []
    source.close()


def test_a_wrong_password_is_a_refused_login(database: Database, make: Maker) -> None:
    source = make(dsn=database.server.dsn(database.name, password="wrong-secret"))
    findings = source.check()
    assert [(f.subject, f.ok, f.code) for f in findings] == [("server", True, ""), ("login", False, "source_refused")]
    assert "wrong-secret" not in repr(findings)
    with pytest.raises(SourceRefused):
        source.prepare(None)


def test_a_missing_database_is_named(database: Database, make: Maker) -> None:
    source = make(dsn=database.server.dsn("nowhere"))
    assert [f.code for f in bad(source.check())] == ["source_database_missing"]
    with pytest.raises(SourceDatabaseMissing, match="nowhere"):
        source.prepare(None)


def test_an_unreachable_host_is_said_to_be_unreachable() -> None:
    source = PostgresSource("shop", PostgresOptions(dsn="postgresql://u:hidden@127.0.0.1:1/d"))
    assert [f.code for f in source.check()] == ["source_unreachable"]
    with pytest.raises(SourceUnreachable) as error:
        source.head()
    assert "hidden" not in error.value.message


def test_settings_that_forbid_replication_come_all_at_once() -> None:
    settings = {"fsync": "off", "wal_level": "replica", "max_replication_slots": "0", "max_wal_senders": "0"}
    with EmbeddedPostgres(settings=settings) as server:
        server.run("CREATE TABLE a (id int PRIMARY KEY)")
        source = PostgresSource("shop", PostgresOptions(dsn=server.dsn()))
        problems = bad(source.check())
        assert [p.subject for p in problems] == ["wal_level", "replication slots", "walsenders"]
        assert {p.code for p in problems} == {"source_settings"}
        with pytest.raises(SourceSettings, match="wal_level is replica"):
            source.prepare(None)
        assert server.run("SELECT 1 FROM pg_publication") == []
        source.close()
        # Not the statements themselves: the embedded server's own file would be read before what they write.
        server.restart(settings={"wal_level": "logical", "max_replication_slots": "10", "max_wal_senders": "10"})
        source.prepare(None)
        source.close()


def test_a_slot_that_another_reads_is_named_with_its_reader(
    database: Database, monkeypatch: pytest.MonkeyPatch, make: Maker
) -> None:
    monkeypatch.setattr(slot, "RELEASE_SECONDS", 0.2)
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    start = source.prepare(None).start
    reader = ReplicationConnection.connect(database.dsn, application_name="somebody")
    reader.start_replication(source.slot, start, {"proto_version": "1", "publication_names": "penstock_shop"})
    try:
        with pytest.raises(SlotInUse, match="somebody") as refusal:
            source.prepare(None)
        assert refusal.value.facts["pid"] == database.rows("SELECT active_pid FROM pg_replication_slots WHERE active")[0][0]
        assert [f.code for f in bad(source.check())] == ["slot_in_use"]
    finally:
        reader.end()
    source.prepare(None)


def test_a_reader_that_is_just_going_is_waited_for(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    start = source.prepare(None).start
    reader = ReplicationConnection.connect(database.dsn)
    reader.start_replication(source.slot, start, {"proto_version": "1", "publication_names": "penstock_shop"})
    reader.close()
    source.prepare(start)


def test_a_worker_of_the_flow_is_no_trouble_for_its_doctor(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    start = source.prepare(None).start
    reader = ReplicationConnection.connect(database.dsn, application_name="penstock shop")
    reader.start_replication(source.slot, start, {"proto_version": "1", "publication_names": "penstock_shop"})
    try:
        assert bad(source.check()) == []
    finally:
        reader.end()


def test_a_slot_that_is_gone_leaves_a_gap_that_is_not_papered_over(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    start = source.prepare(None).start
    database.execute("SELECT pg_drop_replication_slot(%s)", source.slot)
    with pytest.raises(SlotMissing, match=format_lsn(start)):
        source.prepare(start)
    with pytest.raises(SlotMissing):
        source.confirmed()
    assert database.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", source.slot) == []


def test_a_slot_beyond_the_journal_is_a_gap(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    start = source.prepare(None).start
    with pytest.raises(SourceGap):
        source.prepare(start - 1)


def test_a_slot_may_not_be_made_when_the_options_say_so(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make(create_slot=False)
    assert [f.code for f in bad(source.check())] == ["slot_missing"]
    with pytest.raises(SlotMissing) as refusal:
        source.prepare(None)
    database.execute(refusal.value.remedy.partition(";")[0])
    source.prepare(None)


def test_a_slot_of_another_kind_is_not_used(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    database.execute("SELECT pg_create_physical_replication_slot(%s)", source.slot)
    try:
        with pytest.raises(PenstockError, match="physical"):
            source.prepare(None)
    finally:
        database.execute("SELECT pg_drop_replication_slot(%s)", source.slot)


@pytest.mark.slow
def test_a_slot_whose_log_was_removed_is_lost() -> None:
    settings = {"fsync": "off", "max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}
    with EmbeddedPostgres(settings=settings) as server:
        server.run("CREATE TABLE a (id int PRIMARY KEY, v text)")
        source = PostgresSource("shop", PostgresOptions(dsn=server.dsn()))
        start = source.prepare(None).start
        for _ in range(6):
            server.run("SELECT pg_logical_emit_message(false, 'x', repeat('x', 20000000))")
            server.run("SELECT pg_switch_wal()")
            server.run("CHECKPOINT")
        with pytest.raises(SlotLost) as refusal:
            source.prepare(start)
        assert [f.code for f in bad(source.check())] == ["slot_lost"]
        server.run(refusal.value.remedy.partition(";")[0])
        source.prepare(None)
        source.close()


def test_a_lost_control_connection_is_made_again(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source = make()
    before = source.head()
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock shop'")
    assert source.head() >= before


def test_the_recipe_is_plain_data_for_the_capture(database: Database, make: Maker) -> None:
    recipe = make(status_interval="3s").recipe()
    assert recipe["dsn"] == database.dsn and recipe["publication"] == "penstock_shop" and recipe["status_interval"] == 3.0
    assert recipe["server_version"] >= 140000


@pytest.mark.parametrize("flow", ["shop", "Shop", "my-shop", "my_shop", "x" * 63, "x" * 62 + "y", "ä" * 20])
def test_names_from_flows_are_valid_slots_and_never_meet(flow: str) -> None:
    others = ["shop_", "my_shop1", "x" * 61]
    name = default_name(flow)
    assert len(name) <= 63 and name.isascii() and name == name.lower() and "-" not in name
    assert name not in {default_name(other) for other in others}


def test_two_flows_whose_names_differ_by_a_sign_have_two_slots() -> None:
    assert len({default_name(n) for n in ("my-shop", "my_shop", "My-Shop", "my.shop")}) == 4


def test_a_new_flow_begins_where_start_lsn_says(database: Database, make: Maker) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    begun = make().prepare(None).start
    database.execute("INSERT INTO a VALUES (1)")
    later = make().head()
    assert make(start_lsn=format_lsn(later)).prepare(None).start == later
    assert make(start_lsn=format_lsn(later)).prepare(begun).start == begun, "a journal that is there goes on where it ends"
    with pytest.raises(SourceGap, match="beyond start_lsn"):
        make(start_lsn=format_lsn(begun - 1)).prepare(None)
    with pytest.raises(SourceSettings, match="ends before start_lsn"):
        make(start_lsn="FFFF/0").prepare(None)
    with pytest.raises(ValidationError, match="is not an LSN"):
        PostgresOptions(dsn=database.dsn, start_lsn="here")


@pytest.mark.parametrize(("asked", "why"), [("FFFF/0", "ends before start_lsn"), ("0/1", "a new one would begin beyond")])
def test_a_bad_start_lsn_is_refused_before_anything_is_made(database: Database, make: Maker, asked: str, why: str) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pytest.raises(SourceError, match=why):
        make(start_lsn=asked).prepare(None)
    assert database.rows("SELECT 1 FROM pg_publication UNION ALL SELECT 1 FROM pg_namespace WHERE nspname = 'penstock'") == []
    assert database.rows("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []


@pytest.mark.parametrize("whole", [False, True])
def test_a_superusers_publication_is_not_opened_by_granting_the_superuser(
    database: Database, role: str, make: Maker, whole: bool
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE SCHEMA s")
    database.execute(f"CREATE PUBLICATION dba FOR TABLE a{', TABLES IN SCHEMA s' if whole else ''}")
    database.execute(
        f"ALTER ROLE {role} REPLICATION; ALTER TABLE b OWNER TO {role}; GRANT CREATE ON DATABASE {database.name} TO {role}"
    )
    source = make(publication="dba", publication_tables=["public.*"], dsn=login(database, role))
    (problem,) = [f for f in bad(source.check()) if f.subject == "publication dba"]
    assert "GRANT" not in problem.remedy and 'ADD TABLE "public"."b"' in problem.remedy
    assert ("OWNER TO" in problem.remedy) is not whole
    if not whole:
        database.execute(problem.remedy.partition(", or ")[2])
        assert bad(source.check()) == []


def test_batch_size_and_timeout_are_said_on_the_source(database: Database, make: Maker) -> None:
    assert make().batching() == Batching(None, None, empty=False)
    assert make(batch_size=5, batch_timeout="3s", emit_empty=True).batching() == Batching(5, 3.0, empty=True)
