"""Schema changes told by event triggers: ordered with the data, in their own transaction, never in the user's way."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.errors import PenstockError, SourceRights
from penstock.sources.postgres import ddl_function
from penstock.sources.postgres.options import PostgresOptions, trigger_name
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.sources.postgres.captured import Captured
from tests.sources.postgres.roles import Maker, bad, login

STATE = "SELECT kind, name, origin FROM penstock.source_state WHERE kind IN ('event trigger', 'function') ORDER BY kind, name"
TRIGGERS = "SELECT evtname::text FROM pg_event_trigger ORDER BY 1"
OBJECTS = f"""
{TRIGGERS.removesuffix(" ORDER BY 1")} UNION ALL SELECT proname FROM pg_proc WHERE prorettype = 'event_trigger'::regtype
UNION ALL SELECT nspname FROM pg_namespace WHERE oid >= 16384 AND nspname !~ '^pg_'
"""


@pytest.fixture
def database(each_database: Database) -> Database:
    """Every test here runs on each major version."""
    return each_database


def told(captured: Captured) -> list[dict[str, Any]]:
    return [json.loads(e["row"]["content"]) for e in captured.events("messages")]


def short(message: dict[str, Any]) -> tuple[str, str, str]:
    return message["event"], message["tag"], message["object"]["identity"]


def columns(message: dict[str, Any]) -> dict[str, str]:
    return {c["name"]: c["type"] for c in message["after"]["columns"]}


def test_schema_changes_are_told_in_order_with_the_data(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key)")
    captured = Captured(database, tmp_path, capture_ddl=True, publication_tables=["public.*"])
    with captured.running():
        with database.connect() as c:
            c.execute("set datestyle = 'German'; set quote_all_identifiers = on; set search_path = public")
            c.execute("begin; insert into a values (1)")
            c.execute("alter table a add b numeric(8,2) not null default 1.5, add d date default '2024-12-31'")
            c.execute("insert into a values (2); alter table a rename b to c; insert into a values (3)")
            c.execute("savepoint s; alter table a drop c; release s; insert into a values (4); commit")
            c.execute("begin; alter table a rename to z; insert into z values (5); drop table z; commit")
            c.execute("create table other (x int generated always as identity, y int generated always as (x * 2) stored)")
        captured.drain()
    found = told(captured)
    assert [short(m) for m in found] == [
        ("ddl_command_end", "ALTER TABLE", "public.a"),
        ("ddl_command_end", "ALTER TABLE", "public.a.c"),
        ("sql_drop", "ALTER TABLE", "public.a.c"),
        ("ddl_command_end", "ALTER TABLE", "public.a"),
        ("ddl_command_end", "ALTER TABLE", "public.z"),
        ("sql_drop", "DROP TABLE", "public.z"),
        ("ddl_command_end", "CREATE TABLE", "public.other"),
    ]
    added = found[0]["after"]
    assert columns(found[0]) == {"id": "integer", "b": "numeric(8,2)", "d": "date"} and added["key"] == ["id"]
    assert [(c["nullable"], c["default"]) for c in added["columns"]] == [
        (False, None),
        (False, "1.5"),
        (True, "'2024-12-31'::date"),
    ]
    assert columns(found[1]) == {"id": "integer", "c": "numeric(8,2)", "d": "date"}
    assert found[1]["after"]["columns"][1]["position"] == added["columns"][1]["position"], "a rename keeps the place"
    assert found[2]["object"]["column"] == "c" and columns(found[3]) == columns(found[2]) == {"id": "integer", "d": "date"}
    assert found[4]["object"]["oid"] == added["oid"] == found[5]["object"]["oid"], "a rename keeps the oid"
    assert found[5]["after"] is None and found[5]["object"]["name"] == "z"
    assert [(c["identity"], c["generated"]) for c in found[6]["after"]["columns"]] == [("always", None), (None, "(x * 2)")]
    assert found[0]["statement"].startswith("alter table a add b") and found[0]["user"] == "postgres"
    assert {(m["flow"], m["version"], m["statement_cut"]) for m in found} == {("flow", 1, False)}
    ids = sorted([*(e["id"] for t in ("a", "z", "messages") for e in captured.events(t))])
    rows = {e["id"]: e["row"].get("id") for t in ("a", "z", "messages") for e in captured.events(t)}
    assert [rows[i] for i in ids] == [1, None, 2, None, 3, None, None, 4, None, 5, None, None]
    assert {e["op"] for e in captured.events("messages")} == {"message"}


def test_what_is_rolled_back_is_not_told(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key)")
    database.execute(f"alter database {database.name} set debug_logical_replication_streaming = immediate")
    captured = Captured(database, tmp_path, capture_ddl=True)
    with captured.running():
        with database.connect() as c:
            c.execute("begin; alter table a add b int; drop table a; rollback")
            c.execute("begin; alter table a add kept int; savepoint s; alter table a add gone int; rollback to s; commit")
        captured.drain()
    assert [list(columns(m)) for m in told(captured)] == [["id", "kept"]]


def test_only_tables_that_are_or_could_be_the_flows_are_told(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create schema s; create schema t; create table s.a (id int primary key); create table t.listed (id int primary key);"
        "create table s.p (id int primary key) partition by range (id); create type s.mood as enum ('x')"
    )
    captured = Captured(database, tmp_path, capture_ddl=True, publication_tables=["s.*", "t.listed"])
    with captured.running():
        for statement in (
            "create table s.b (id int primary key references s.a, m s.mood)",
            "create table t.b (id int)",
            "alter table t.b add v int",
            "drop table t.b",
            "alter table t.listed add v int",
            "create temp table a (id int)",
            "create unlogged table s.u (id int)",
            "create view s.v as select 1 as x; create index on s.a (id); comment on table s.a is 'x'; alter view s.v rename to w",
            "create table t.p1 partition of s.p for values from (0) to (10)",
            "alter table s.p add v int",
            "alter table s.p drop v",
            "create schema x create table t1 (id int)",
            "select 1 as id into s.into_table",
            "drop type s.mood cascade",
            "alter table t.listed rename to renamed",
            "drop table t.renamed, s.b",
            "drop schema s cascade",
        ):
            database.execute(statement)
        captured.drain()
    found = [(m["event"], m["object"]["identity"]) for m in told(captured)]
    assert found[:9] == [
        ("ddl_command_end", "s.b"),
        ("ddl_command_end", "t.listed"),
        ("ddl_command_end", "t.p1"),
        ("ddl_command_end", "s.p"),
        ("sql_drop", "s.p.v"),
        ("ddl_command_end", "s.p"),
        ("ddl_command_end", "s.into_table"),
        ("sql_drop", "s.b.m"),
        ("ddl_command_end", "t.renamed"),
    ]
    # That a table was unlogged is no longer known when it is gone.
    dropped = {"s.b", "t.renamed", "s.a", "s.p", "s.into_table", "s.u"}
    assert {identity for event, identity in found[9:] if event == "sql_drop"} == dropped and len(found) == 9 + len(dropped)
    assert told(captured)[2]["after"]["partition_of"] == "s.p"


@pytest.mark.parametrize("publication", ["for all tables", "for tables in schema public", "for table a"])
def test_somebody_elses_publication_says_what_is_told(database: Database, tmp_path: Path, publication: str) -> None:
    database.execute(f"create table a (id int primary key); create publication dba {publication}")
    captured = Captured(database, tmp_path, capture_ddl=True, publication="dba", ensure_publication=False)
    with captured.running():
        database.execute("alter table a add v int")
        database.execute("create table b (id int primary key)")
        database.execute("drop table a")
        captured.drain()
    identities = [m["object"]["identity"] for m in told(captured)]
    assert identities == (["public.a", "public.a"] if "table a" in publication else ["public.a", "public.b", "public.a"])


def test_hostile_names(database: Database, tmp_path: Path) -> None:
    weird = '"We""ird; täble $1 %s {flow}"'
    database.execute(f'create schema "S. ""x"; create table "S. ""x".{weird} ("c\'; --" int primary key, "C" int)')
    database.execute('create table "it\'sz\\q" (id int primary key)')
    options: dict[str, Any] = {
        "ddl_trigger_schema": 'dd"l; x',
        "ddl_trigger_name": "tr'ig\"ger $$ \\ {x}",
        "ddl_message_prefix": "pre'  fix\\ {flow} %s",
        "publication": "pub\"; ' \\ x",
        "publication_tables": ['S. "x.*', "it's[!a]\\*"],
    }
    captured = Captured(database, tmp_path, capture_ddl=True, **options)
    with captured.running():
        database.execute(f'alter table "S. ""x".{weird} rename "C" to "ü\'\\"')
        database.execute('create table "it\'sb\\" (id int primary key); create table "it\'sa\\" (id int)')
        captured.drain()
    assert bad(captured.source.check()) == []
    first, second = told(captured)
    assert first["object"]["name"] == 'We"ird; täble $1 %s {flow}' and list(columns(first)) == ["c'; --", "ü'\\"]
    assert second["object"]["name"] == "it'sb\\"
    assert {e["row"]["prefix"] for e in captured.events("messages")} == {options["ddl_message_prefix"]}
    removed = {(b.kind, b.name) for b in captured.source.drop()}
    assert ("event trigger", f"{options['ddl_trigger_name']}_drop") in removed and ("schema", 'dd"l; x') in removed
    assert database.rows(TRIGGERS) == []
    captured.source.close()


def test_a_failure_inside_is_a_warning_and_the_command_succeeds(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("create table a (id int primary key)")
    monkeypatch.setattr(ddl_function, "FACTS", "(1 / (%s::bigint * 0))")
    captured = Captured(database, tmp_path, capture_ddl=True)
    notices: list[str] = []
    with captured.running():
        with database.connect() as c:
            c.add_notice_handler(
                lambda diagnostic: notices.append(f"{diagnostic.severity_nonlocalized} {diagnostic.message_primary}")
            )
            c.execute("alter table a add b int; insert into a values (1, 2)")
        captured.drain()
    assert notices == ["WARNING penstock flow flow: a schema change could not be told: division by zero"]
    assert [e["row"] for e in captured.events("a")] == [{"id": 1, "b": 2}] and told(captured) == []


def test_users_without_rights_and_with_odd_settings_change_tables_as_before(
    database: Database, role: str, tmp_path: Path
) -> None:
    database.execute(f"create table a (id int primary key); alter table a owner to {role}")
    emits = "select oid::regprocedure::text from pg_proc where proname = 'pg_logical_emit_message' order by 1"
    function = database.rows(emits)[0][0]
    assert "bytea" in function
    database.execute(f"revoke execute on function {function} from public")
    captured = Captured(database, tmp_path, capture_ddl=True)
    with captured.running():
        with psycopg.connect(login(database, role), autocommit=True) as c:
            c.execute("set client_encoding = 'LATIN1'; set plpgsql.extra_errors = 'all'; set standard_conforming_strings = off")
            c.execute("set default_transaction_isolation = 'serializable'; set client_min_messages = 'debug1'")
            c.execute("create function pg_temp.left(text, int) returns text language sql as 'select (1/0)::text'")
            c.execute('alter table a add "ü" int')
        captured.drain()
    (message,) = told(captured)
    assert list(columns(message)) == ["id", "ü"] and message["user"] == role


def test_other_messages_are_left_out_unless_they_are_asked_for(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key)")
    only = Captured(database, tmp_path / "only", capture_ddl=True)
    both = PostgresSource("other", PostgresOptions(dsn=database.dsn, capture_ddl=True, slot=f"o_{database.name}"))
    both.prepare(None)
    with only.running():
        database.execute("select pg_logical_emit_message(true, 'outbox', 'x')")
        database.execute("select pg_logical_emit_message(true, 'penstock.ddl', 'forged')")
        database.execute("select pg_logical_emit_message(true, 'penstock.heartbeat', '')")
        database.execute("alter table a add v int")
        only.drain()
    assert [m["flow"] for m in told(only)] == ["flow"], "the other flow's triggers tell it too, to that flow"
    only.source.options = only.source.options.model_copy(update={"emit_messages": True})
    only._decoder.recipe = only.source.decoding()
    assert [e["row"]["content"][:9] for e in only.events("messages")] == [b"x", b'{"flow": ']
    assert [t.name for t in both.discover()] == ["a", "messages"]
    both.drop()
    both.close()
    assert len(database.rows(TRIGGERS)) == 2


def test_what_the_flow_installs_is_recorded_once_and_follows_the_options(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key)")
    before = database.rows(OBJECTS)
    source = make(capture_ddl=True)
    findings = {f.subject: f for f in source.check()}
    assert findings["event trigger penstock_shop_ddl"].detail == "will be created"
    start = source.prepare(None).start
    names = ["penstock_shop_ddl", "penstock_shop_ddl_drop"]
    assert database.rows(STATE) == [
        *(("event trigger", name, "made") for name in names),
        ("function", "penstock.penstock_shop_ddl", "made"),
    ]
    stamp = (
        "select oid, xmin::text from pg_event_trigger union all select oid, xmin::text from pg_proc where proname ~ 'shop_ddl'"
    )
    first = database.rows(stamp)
    make(capture_ddl=True).prepare(start)
    assert database.rows(stamp) == first and bad(source.check()) == []
    # Other patterns are another function; another name leaves nothing behind.
    narrow = make(capture_ddl=True, publication_tables=["public.a"])
    narrow.prepare(start)
    assert database.rows(stamp) != first and [r[0] for r in database.rows(TRIGGERS)] == names
    make(capture_ddl=True, ddl_trigger_name="mine", ddl_trigger_schema="elsewhere").prepare(start)
    assert [r[0] for r in database.rows(TRIGGERS)] == ["mine", "mine_drop"]
    make(capture_ddl=True, ddl_trigger_name="mine").prepare(start)
    assert database.rows(STATE)[2] == ("function", "penstock.mine", "made")
    make().prepare(start)
    assert database.rows(TRIGGERS) == [] and database.rows(STATE) == []
    make(capture_ddl=True, ddl_trigger_schema="elsewhere").prepare(start)
    going = {(b.kind, b.name) for b in make().belongings() if b.made}
    assert ("event trigger", names[1]) in going and ("function", "elsewhere.penstock_shop_ddl") in going
    make(ddl_trigger_schema="elsewhere").drop()
    assert database.rows(OBJECTS) == before
    assert make().drop() == []


def test_missing_and_disabled_triggers_are_found(database: Database, make: Maker) -> None:
    database.execute("create table a (id int primary key)")
    source = make(capture_ddl=True)
    start = source.prepare(None).start
    database.execute("alter event trigger penstock_shop_ddl_drop disable")
    (finding,) = bad(source.check())
    assert finding.code == "source_settings" and "disabled" in finding.detail
    with pytest.raises(PenstockError, match="disabled"):
        source.prepare(start)
    assert [f.detail for f in source.look().findings] == [finding.detail], "a running flow says so too"
    database.execute(finding.remedy.partition(";")[0])
    assert bad(source.check()) == [] and source.look().findings == ()
    database.execute("drop event trigger penstock_shop_ddl")
    assert ["is gone" in f.detail for f in source.look().findings] == [True]
    assert next(f for f in source.check() if "event trigger" in f.subject).detail == "will be brought up to date"
    with capture_logs() as logs:
        source.prepare(start)
    assert [e["trigger"] for e in logs if "are not told" in e["event"]] == ["penstock_shop_ddl"]
    # What others have made under that name is left alone.
    database.execute("create function f() returns event_trigger language plpgsql as 'begin end'")
    database.execute("create event trigger taken on ddl_command_start execute function f()")
    (finding,) = bad(make(capture_ddl=True, ddl_trigger_name="taken").check())
    assert "ddl_trigger_name" in finding.remedy
    other = PostgresSource("other", PostgresOptions(dsn=database.dsn, capture_ddl=True, ddl_trigger_name="penstock_shop_ddl"))
    assert any("belongs to another flow (shop)" in f.detail for f in bad(other.check()))
    other.close()


@pytest.mark.parametrize("comment", ["null", "'penstock flow shop'"])
def test_a_function_that_others_laid_in_wait_is_not_run(database: Database, role: str, make: Maker, comment: str) -> None:
    database.execute(f"create table a (id int primary key); create schema penstock authorization {role}")
    with psycopg.connect(login(database, role), autocommit=True) as c:
        c.execute(
            "create function penstock.penstock_shop_ddl() returns event_trigger language plpgsql as"
            " $$begin execute 'alter role ' || session_user || ' superuser'; end$$"
        )
        c.execute(f"comment on function penstock.penstock_shop_ddl() is {comment}")
    source = make(capture_ddl=True)
    (finding,) = bad(source.check())
    assert finding.code == "source_rights" and role in finding.detail
    with pytest.raises(SourceRights, match="everybody's sessions run"):
        source.prepare(None)
    assert database.rows(TRIGGERS) == []
    database.execute(finding.remedy.partition("; ")[2].partition(";")[0])
    source.prepare(None)
    assert bad(source.check()) == []
    source.drop()


def test_a_role_without_the_right_uses_what_a_dba_lays_out(database: Database, role: str, make: Maker) -> None:
    database.execute(f"create table a (id int primary key); alter table a owner to {role}; alter role {role} replication")
    database.execute(f"grant create on database {database.name} to {role}")
    source = make(capture_ddl=True, dsn=login(database, role))
    (finding,) = bad(source.check())
    assert finding.code == "source_rights" and finding.remedy.isprintable()
    with pytest.raises(SourceRights, match="may not create the event trigger"):
        source.prepare(None)
    assert database.rows("select 1 from pg_publication") == [], "refused before anything is made"
    database.execute(finding.remedy.removeprefix("As a superuser: ").removesuffix(" Or set `capture_ddl: false`."))
    assert bad(source.check()) == []
    start = source.prepare(None).start
    assert {row[2] for row in database.rows(STATE)} <= {"found"}
    # Other options want another function, which only its owner can make: the flow runs with what is there.
    narrow = make(capture_ddl=True, dsn=login(database, role), publication_tables=["public.a"])
    advice = next(f for f in narrow.check() if "event trigger" in f.subject)
    assert advice.ok and "made by others" in advice.detail
    with capture_logs() as logs:
        narrow.prepare(start)
    assert any("out of date" in e["event"] for e in logs)
    database.execute(advice.remedy)
    assert not next(f for f in narrow.check() if "event trigger" in f.subject).remedy
    assert {b.note for b in narrow.belongings() if b.kind in ("event trigger", "function")} == {"made by others"}
    narrow.drop()
    assert len(database.rows(TRIGGERS)) == 2
    database.execute("drop schema penstock cascade")
    assert database.rows(TRIGGERS) == []


def test_patterns_mean_the_same_to_the_server(database: Database) -> None:
    patterns = ["public.*", "*", "p?b*.a", "pub*.[ab]", "pub*.[!ab]", "a.b+c", "x[", "(a|b)", "ü*", "^a$", "\\d"]
    names = ["public.a", "public.c", "a.b+c", "abc", "x[", "(a|b)", "über", "^a$", "\\d", "5", "]", "a", "p\nb.a", "pub.a"]
    with database.connect() as c:
        for pattern in (*patterns, "[]a]", "[a-c]"):
            answers = c.execute("select n ~ %s from unnest(%s::text[]) n", (ddl_function.regex(pattern), names)).fetchall()
            expected = [fnmatchcase(name, pattern) for name in names]
            # A set of other than plain characters fits any one character: too much is told, never too little.
            assert all(a or not e for (a,), e in zip(answers, expected, strict=True))
            assert pattern not in patterns or [a for (a,) in answers] == expected, pattern


def test_names_from_flows_leave_room_and_never_meet() -> None:
    flows = ["shop", "shop_ddl", "shop-1", "shop_1", "a" * 63, "a" * 62 + "b", "x" * 50]
    names = {name for flow in flows for name in (trigger_name(flow), f"{trigger_name(flow)}_drop")}
    assert len(names) == 2 * len(flows) and all(len(name) <= 63 for name in names)
