"""Chunks hold every published row exactly once, however a table is cut and whatever it looks like."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SourceRights, SourceSettings, TableGone
from penstock.sources.postgres.control import Control
from tests.conftest import Database
from tests.sources.postgres.load.loads import loading, truth
from tests.sources.postgres.roles import login

SMALL = 20_000
KINDS: dict[str, dict[str, Any]] = {
    "ctid": {"target_bytes": SMALL},
    "key": {"target_bytes": SMALL, "common_snapshot": False},
    "hash": {"partition_column": "h", "partition_count": 5},
    "whole": {},
}
TABLES = {
    "plain": "create table {t} (id int primary key, h int, v text); insert into {t} select g, g % 7, repeat('x', 60) from"
    " generate_series(1, 1600) g",
    "empty": "create table {t} (id int primary key, h int)",
    "no_key": "create table {t} (h int, v text); alter table {t} replica identity full;"
    " insert into {t} select nullif(g % 9, 0), repeat('x', g % 90) from generate_series(1, 1600) g",
    "composite": "create table {t} (h text, b date, c numeric, v text, primary key (b, h, c)); insert into {t}"
    " select 'it''s ' || g % 3, date '2020-01-01' + g % 4, g / 3.0, 'v' from generate_series(1, 1600) g",
    "skewed": "create table {t} (h int, id int, v text, primary key (h, id)); insert into {t} select case when g < 1500"
    " then 1 else g end, g, repeat('x', 50) from generate_series(1, 1600) g",
    "sparse": "create table {t} (id bigint primary key, h int, v text); insert into {t} select (random() * 9e18)::bigint, g,"
    " repeat('x', 60) from generate_series(1, 1600) g on conflict do nothing; delete from {t} where h % 50 <> 0",
    "wide": "create table {t} (id uuid primary key default gen_random_uuid(), h int, v text); alter table {t} alter v set storage"
    " external; insert into {t} (h, v) select g, repeat('w', 20000) from generate_series(1, 40) g",
    "floats": "create table {t} (id float8 primary key, h int); insert into {t} select case g when 1 then 'NaN' when 2 then"
    " 'infinity' when 3 then '-infinity' else sqrt(g) end, g from generate_series(1, 1600) g",
    "booleans": "create table {t} (b bool, c char(5), i inet, h int, primary key (b, c, i)); insert into {t} select g % 2 = 0,"
    " chr(65 + g % 26), '10.0.0.0'::inet + g, g from generate_series(1, 1500) g",
    "domain": "create domain {t}_d as varchar(40) check (value <> ''); create table {t} (id {t}_d primary key, h int);"
    " insert into {t} select 'k' || g, g from generate_series(1, 1500) g",
    "mood": "create type {t}_e as enum ('b', 'a', 'it''s'); create table {t} (m {t}_e, id int, h int, primary key (m, id));"
    " insert into {t} select (array['b', 'a', 'it''s'])[1 + g % 3]::{t}_e, g, g from generate_series(1, 1500) g",
    "generated": "create table {t} (id int primary key, h int, g int generated always as (id * 2) stored);"
    " insert into {t} (id, h) select g, g from generate_series(1, 1500) g",
    "never_analysed": "create table {t} (id int primary key, h int) with (autovacuum_enabled = off); insert into {t}"
    " select g, g from generate_series(1, 1600) g",
    "pattern": "create table {t} (id text, h int, v text); create unique index {t}_i on {t} (id text_pattern_ops);"
    " alter table {t} alter id set not null, replica identity using index {t}_i;"
    " insert into {t} select md5(g::text), g, repeat('x', 60) from generate_series(1, 1500) g",
}  # fmt: skip


@pytest.fixture
def database(each_database: Database) -> Database:
    """Every test here runs on each major version."""
    return each_database


def test_every_row_is_in_exactly_one_chunk_of_every_kind_and_table(database: Database, tmp_path: Path) -> None:
    for name, statements in TABLES.items():
        database.execute(statements.format(t=name))
    seen = set()
    with loading(database, tmp_path) as load:
        load.source.prepare(None)
        hold = load.source.hold_snapshot()
        for rules in KINDS.values():
            for table in load.tables:
                chunks = load.plan(table, **rules)
                assert [c.number for c in chunks] == list(range(1, len(chunks) + 1)) and chunks
                snapshot = hold.name if rules.get("common_snapshot", True) else None
                assert load.count(chunks, snapshot) == truth(load, table), (table.name, rules)
                seen |= {(table.name, c.kind) for c in chunks}
                if not rules.get("common_snapshot", True):
                    assert not any(c.common for c in chunks), table.name
        hold.close()
    kinds = {name: {k for t, k in seen if t == name} for name in TABLES}
    for name in ("plain", "composite", "skewed", "floats", "booleans", "domain", "mood", "generated", "never_analysed"):
        assert kinds[name] == {"whole", "ctid", "key", "hash"}, name
    assert kinds["no_key"] == kinds["pattern"] == {"whole", "ctid", "hash"}
    # Whether its few rows are worth a cut by key depends on what a vacuum has made of its pages.
    assert kinds["sparse"] - {"key"} == {"whole", "ctid", "hash"}
    assert kinds["empty"] == {"whole", "hash"}


def test_ranges_come_out_about_equal_whatever_the_keys(database: Database, tmp_path: Path) -> None:
    for name in ("plain", "composite", "skewed", "never_analysed"):
        database.execute(TABLES[name].format(t=name))
    with loading(database, tmp_path) as load:
        for table in load.tables:
            for rules in (KINDS["ctid"], KINDS["key"]):
                sizes = [len(load.rows(c)) for c in load.plan(table, **rules)]
                assert len(sizes) > 2 and max(sizes) < 3 * sum(sizes) / len(sizes), (table.name, sizes)


def test_partitions_are_read_leaf_by_leaf_under_the_root(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table r (id int, h int, v text, primary key (id, h)) partition by range (id);"
        "create table r1 partition of r for values from (0) to (1000) partition by hash (h);"
        "create table r1a partition of r1 for values with (modulus 2, remainder 0);"
        "create table r1b (v text, h int not null, id int not null);"
        "alter table r1 attach partition r1b for values with (modulus 2, remainder 1);"
        "create table r2 partition of r default;"
        "insert into r select g, g % 13, repeat('x', 60) from generate_series(1, 4000) g"
    )
    database.execute("create table u (h int, v text) partition by list (h); alter table u replica identity full")
    database.execute("create table u1 partition of u for values in (1); create table u2 partition of u default")
    database.execute("alter table u1 replica identity full; alter table u2 replica identity full")
    database.execute("insert into u select g % 3, 'x' from generate_series(1, 300) g")
    with loading(database, tmp_path) as load:
        for table in load.tables:
            expected = truth(load, table, only=False)
            for rules in KINDS.values():
                chunks = load.plan(table, **rules)
                assert load.count(chunks) == expected, (table.name, rules)
        assert {c.bounds["name"] for c in load.plan(load.table("r"))} == {'"public"."r1a"', '"public"."r1b"', '"public"."r2"'}
        alone = load.plan(load.table("u"), common_snapshot=False)
        assert [c.bounds["name"] for c in alone] == ['"public"."u"']


def test_leaves_that_are_published_under_their_own_names_are_read_so(database: Database, tmp_path: Path) -> None:
    database.execute("create table r (id int primary key) partition by range (id);"
                     "create table r1 partition of r for values from (0) to (50); create table r2 partition of r default;"
                     "insert into r select generate_series(1, 99); create publication p for table r")  # fmt: skip
    with loading(database, tmp_path, publication="p") as load:
        assert {t.name: load.count(load.plan(t)).total() for t in load.tables} == {"r1": 49, "r2": 50}


def test_a_partitioned_table_whose_leaves_may_not_be_read_is_read_by_its_root(
    database: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database.execute("create table r (id int primary key, v text) partition by range (id);"
                     "create table r1 partition of r for values from (0) to (1000); create table r2 partition of r default;"
                     "insert into r select g, repeat('x', 60) from generate_series(1, 4000) g; create publication p for table r"
                     " with (publish_via_partition_root)")  # fmt: skip
    role = f"low_{database.name}"
    database.execute(f"create role {role} login password 'x'; grant select on r to {role}")
    try:
        with loading(database, tmp_path, dsn=login(database, role), publication="p") as load:
            table = load.table("r")
            for rules in (KINDS["ctid"], KINDS["key"]):
                chunks = load.plan(table, **rules)
                assert len(chunks) > 3 and {c.bounds["name"] for c in chunks} == {'"public"."r"'}
                assert load.count(chunks).total() == 4000
    finally:
        database.execute(f"drop owned by {role}; drop role {role}")


def test_filters_and_column_lists_of_the_publication_hold_for_chunks(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES["plain"].format(t="t"))
    database.execute("create publication p for table t (id, h) where (id > 100 and h <> 3)")
    with loading(database, tmp_path, publication="p") as load:
        table = load.table("t")
        expected = truth(load, table, "id > 100 and h <> 3")
        for rules in KINDS.values():
            chunks = load.plan(table, **rules)
            assert load.count(chunks) == expected
            assert list(load.rows(chunks[-1])[0]) == ["id", "h"]


def test_a_condition_chooses_rows_and_a_wrong_one_is_refused_before_anything_is_read(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES["plain"].format(t="t"))
    with loading(database, tmp_path) as load:
        for rules in KINDS.values():
            chunks = load.plan(where="h = 2 or v like '%y%' -- of all", **rules)
            assert load.count(chunks) == truth(load, load.table("t"), "h = 2")
        for wrong in ("nonsense = 1", "h = 2) or (true", "h = 2 order by h", "h = 2; drop table t"):
            with pytest.raises(SourceSettings, match=r"condition for public\.t"):
                load.plan(where=wrong)


def test_rows_that_come_between_planning_and_the_snapshot_are_in_a_chunk(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES["plain"].format(t="t") + "; create table e (id int primary key)")
    with loading(database, tmp_path) as load:
        plans = [load.plan(load.table("t"), **rules) for rules in KINDS.values()] + [load.plan(load.table("e"))]
        database.execute("insert into t select g, g, repeat('y', 60) from generate_series(-999, 0) g; insert into e values (1)")
        database.execute("insert into t select g, g, repeat('y', 60) from generate_series(5000, 6000) g")
        held = load.source.hold_snapshot()
        for chunks in plans:
            assert load.count(chunks, held.name) == truth(load, load.table(chunks[0].name))
        held.close()


def test_names_that_are_hard_to_quote_are_read(database: Database, tmp_path: Path) -> None:
    database.execute(
        'create schema "S;""x"; create table "S;""x"."We""ird; täble" ("a""b" int primary key, "select" text, "n" int);'
        'insert into "S;""x"."We""ird; täble" select g, repeat(\'x\', 60), g from generate_series(1, 2000) g'
    )
    with loading(database, tmp_path) as load:
        (table,) = load.tables
        for rules in (*list(KINDS.values())[:2], {"partition_column": 'a"b', "partition_count": 3}):
            assert load.count(load.plan(table, **rules)) == truth(load, table)


def test_an_inherited_table_has_only_its_own_rows(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); create table heir (primary key (id)) inherits (t);"
                     "insert into t values (1); insert into heir values (2)")  # fmt: skip
    with loading(database, tmp_path) as load:
        assert {c.name: load.rows(c) for c in load.plan()} == {"t": [{"id": 1}], "heir": [{"id": 2}]}


def test_an_extension_type_as_key_is_cut_by_ranges(database: Database, tmp_path: Path) -> None:
    if not database.rows("select 1 from pg_available_extensions where name = 'citext'"):
        pytest.skip("the server has no citext")
    database.execute("create extension citext; create table t (id citext, n int, v text, primary key (id, n));"
                     "insert into t select md5(g::text), g, repeat('x', 60) from generate_series(1, 3000) g")  # fmt: skip
    with loading(database, tmp_path) as load:
        chunks = load.plan(**KINDS["key"])
        assert len(chunks) > 3 and load.count(chunks) == truth(load, load.table("t"))


def test_rows_that_a_policy_hides_are_refused(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); insert into t values (1); alter table t enable row level security")
    role = f"low_{database.name}"
    database.execute(f"create role {role} login password 'x'; grant select on t to {role}; create publication p for table t")
    try:
        with loading(database, tmp_path, dsn=login(database, role), publication="p") as load:
            (chunk,) = load.plan()
            with pytest.raises(SourceRights, match="may not read all rows") as refused:
                load.rows(chunk)
            assert "BYPASSRLS" in refused.value.remedy
    finally:
        database.execute(f"drop owned by {role}; drop role {role}")


def test_hundreds_of_tables_are_planned_with_a_few_queries(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.connect() as connection:
        connection.execute("do $$ begin for i in 1..300 loop execute format('create table t%s (id int primary key, v text)', i);"
                           " end loop; end $$")  # fmt: skip
    asked: list[object] = []
    inner = Control.rows

    def counted(self: Control, sql: Any, values: Any = None) -> Any:
        asked.append(sql)
        return inner(self, sql, values)

    with loading(database, tmp_path) as load:
        tables = load.tables
        monkeypatch.setattr(Control, "rows", counted)
        chunks = load.plan(*tables)
        few = len(asked)
        load.plan(*tables, common_snapshot=False)
    assert len(chunks) == 300 and few < 8 and len(asked) < 16


def test_a_column_that_no_table_has_is_refused_and_one_that_some_have_is_used_there(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key, h int); create table b (id int primary key)")
    with loading(database, tmp_path) as load:
        with pytest.raises(SourceSettings, match="column 'nope'"):
            load.plan(partition_column="nope", partition_count=2)
        found = load.plan(partition_column="h", partition_count=2)
        assert [(c.name, c.kind) for c in found] == [("a", "hash"), ("a", "hash"), ("b", "whole")]
        assert [c.common for c in found] == [True, True, False]
        gone = load.table("b")
        database.execute("drop table b")
        with pytest.raises(TableGone):
            load.plan(gone)


@pytest.mark.slow
def test_random_tables_are_cut_without_loss(database: Database, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    r = random.Random(seed)
    types = {
        "int": "(random() * {n})::int",
        "bigint": "(random() * 9e18)::bigint",
        "text": "md5((random() * {n})::text)",
        "numeric": "round((random() * {n})::numeric, 3)",
        "date": "date '2000-01-01' + (random() * {n})::int",
        "uuid": "gen_random_uuid()",
        "timestamptz": "now() + random() * interval '9 years'",
        "bytea": "decode(md5(g::text), 'hex')",
        "varchar(9)": "left(md5(g::text), 9)",
    }
    for i in range(6):
        columns = r.choices(list(types), k=r.randint(1, 5))
        n, key = r.choice((0, 1, 50, 3000)), r.sample(range(len(columns)), r.randint(0, len(columns)))
        primary = f", primary key ({', '.join(f'c{k}' for k in key)})" if key else ""
        body = ", ".join(f"c{j} {t}" for j, t in enumerate(columns))
        database.execute(f"create table t{i} ({body}{primary})")
        if not key:
            database.execute(f"alter table t{i} replica identity full")
        values = ", ".join(types[t].format(n=r.choice((3, 50, 100000))) for t in columns)
        database.execute(f"insert into t{i} select {values} from generate_series(1, {n}) g on conflict do nothing")
        if r.random() < 0.5:
            database.execute(f"delete from t{i} where random() < 0.5")
    with loading(database, tmp_path) as load:
        hold = load.source.hold_snapshot()
        for table in load.tables:
            for rules in (
                {"target_bytes": r.randint(8192, 100000)},
                {"target_bytes": r.randint(8192, 100000), "common_snapshot": False},
                {"partition_column": r.choice(table.columns).name, "partition_count": r.randint(2, 5)},
            ):
                found = load.count(load.plan(table, **rules), hold.name)
                assert found == truth(load, table), (seed, table.name, rules)
        hold.close()
