"""A publication brought in line with the patterns at the start, and left alone where the flow may only use it."""

from __future__ import annotations

import pytest

from penstock.errors import PublicationMissing, SourceRights, TablesMissing
from tests.conftest import Database
from tests.sources.postgres.roles import Maker, bad, login

TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY);"
    'CREATE TABLE "We""ird; täble" (id int PRIMARY KEY);'
)


@pytest.fixture
def database(each_database: Database) -> Database:
    """Every test here runs on each major version."""
    return each_database


def published(database: Database) -> list[str]:
    return [row[0] for row in database.rows("SELECT tablename FROM pg_publication_tables ORDER BY 1")]


def test_add_adds_and_drops_nothing(database: Database, make: Maker) -> None:
    database.execute(f"{TABLES} CREATE PUBLICATION p FOR TABLE a")
    make(publication="p", sync_publication=True, publication_tables=["b"]).prepare(None)
    assert published(database) == ["a", "b"]


def test_sync_also_drops_what_the_patterns_no_longer_name(database: Database, make: Maker) -> None:
    database.execute(TABLES)
    make().prepare(None)
    assert len(published(database)) == 3
    source = make(publication_tables=["public.b"], sync_publication=True, sync_publication_mode="sync")
    detail = next(f.detail for f in source.check() if f.subject.startswith("publication"))
    assert "lose 2 tables" in detail and 'We"ird; täble' in detail
    assert [t.name for t in source.discover()] == ["b"]
    source.prepare(None)
    assert published(database) == ["b"]


def test_a_publication_of_others_follows_only_when_asked(database: Database, make: Maker) -> None:
    database.execute(f"{TABLES} CREATE PUBLICATION p FOR TABLE a")
    make(publication="p").prepare(None)
    assert published(database) == ["a"]
    make(publication="p", sync_publication=True).prepare(None)
    assert len(published(database)) == 3


def test_column_lists_and_row_filters_stay(database: Database, make: Maker) -> None:
    database.execute(f"{TABLES} CREATE PUBLICATION p FOR TABLE a (id), b WHERE (id > 5)")
    make(publication="p", publication_tables=["a", "b", "We*"], sync_publication=True, sync_publication_mode="sync").prepare(None)
    found = database.rows("SELECT tablename, attnames, rowfilter FROM pg_publication_tables ORDER BY 1")
    assert found[1:] == [("a", ["id"], None), ("b", ["id"], "(id > 5)")]


def test_sync_without_a_table_that_fits_drops_nothing(database: Database, make: Maker) -> None:
    database.execute(f"{TABLES} CREATE SCHEMA s; CREATE TABLE s.c (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE a, TABLES IN SCHEMA s")
    for validate in (True, False):
        options = {"sync_publication": True, "sync_publication_mode": "sync", "validate_replication": validate}
        with pytest.raises(TablesMissing):
            make(publication="p", publication_tables=["nothing.*"], **options).prepare(None)
    assert published(database) == ["a", "c"]


@pytest.mark.parametrize("whole", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_whole_publications_are_used_as_they_are(database: Database, make: Maker, whole: str) -> None:
    database.execute(f"{TABLES} CREATE PUBLICATION p FOR {whole}")
    source = make(publication="p", publication_tables=["a"], sync_publication=True, sync_publication_mode="sync")
    source.prepare(None)
    assert bad(source.check()) == []
    assert {"a", "b"} <= set(published(database))
    assert {"a", "b"} <= {t.name for t in source.discover()}


@pytest.mark.parametrize("what", ["TABLE a (id), b WHERE (id > 5)", "ALL TABLES", "TABLES IN SCHEMA public"])
def test_a_role_that_may_only_use_what_is_there_makes_nothing_and_works(
    database: Database, role: str, make: Maker, what: str
) -> None:
    source = make(publication="dba", dsn=login(database, role))
    database.execute(f"{TABLES} CREATE PUBLICATION dba FOR {what}; ALTER ROLE {role} REPLICATION; GRANT SELECT ON a, b TO {role}")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", source.slot)
    before = database.rows("SELECT oid, xmin::text FROM pg_publication"), database.rows("SELECT nspname FROM pg_namespace")
    first = source.prepare(None)
    again = source.prepare(first.start)
    assert (again.identity, again.start) == (first.identity, first.start)
    assert bad(source.check()) == []
    assert {"a", "b"} <= {t.name for t in source.discover()}
    named = make(publication="dba", dsn=login(database, role), publication_tables=["a", "b"], create_slot=False)
    named.prepare(first.start)
    assert bad(named.check(first.start)) == []
    after = database.rows("SELECT oid, xmin::text FROM pg_publication"), database.rows("SELECT nspname FROM pg_namespace")
    assert after == before


def test_what_a_limited_role_is_asked_and_cannot_do_is_said_with_sql(database: Database, role: str, make: Maker) -> None:
    database.execute(f"{TABLES} CREATE PUBLICATION dba FOR TABLE a, b; ALTER ROLE {role} REPLICATION")
    options = {"publication": "dba", "dsn": login(database, role), "sync_publication": True}
    source = make(**options, publication_tables=["a"], sync_publication_mode="sync")
    with pytest.raises(SourceRights) as refusal:
        source.prepare(None)
    assert refusal.value.remedy.startswith('ALTER PUBLICATION "dba" DROP TABLE "public"."b";')
    database.execute(refusal.value.remedy.partition(";")[0])
    source.prepare(None)
    assert published(database) == ["a"]


def test_sync_extends_what_is_there_and_makes_nothing_by_itself(database: Database, make: Maker) -> None:
    database.execute(TABLES)
    options = {"ensure_publication": False, "sync_publication": True, "publication_tables": ["a"]}
    with pytest.raises(PublicationMissing):
        make(**options).prepare(None)
    database.execute("CREATE PUBLICATION penstock_shop")
    make(**options).prepare(None)
    assert published(database) == ["a"]


def test_a_journal_makes_missing_things_a_problem(database: Database, make: Maker) -> None:
    database.execute(TABLES)
    source = make()
    assert bad(source.check()) == []
    assert [f.code for f in bad(source.check(1))] == ["publication_missing", "slot_missing"]
    end = source.prepare(None).start
    assert bad(source.check(end)) == []
    assert [f.code for f in bad(source.check(end - 1))] == ["source_gap"]
