"""Capture and decoder together: what the server committed comes out, in order, once, whatever happened in between."""

from __future__ import annotations

import datetime
import decimal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import SlotInUse
from penstock.journal.record import SliceFlag
from penstock.journal.writer import JournalWriter
from penstock.sources.postgres import assembly
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.relation import RelationBook
from penstock.sources.postgres.typebook import TypeBook
from tests.conftest import Database
from tests.processes import wait_until
from tests.sources.postgres.captured import Captured, events_of


def test_insert_update_delete_arrive_in_order_with_position_and_ordinal(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v text)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("begin; insert into t values (1, 'a'), (2, 'b'); update t set v = 'c' where id = 1; commit")
        database.execute("delete from t where id = 2")
        captured.drain()
    events = captured.events("t")
    assert [(e["op"], e["row"]) for e in events] == [
        ("insert", {"id": 1, "v": "a"}),
        ("insert", {"id": 2, "v": "b"}),
        ("update", {"id": 1, "v": "c"}),
        ("delete", {"id": 2, "v": None}),
    ]
    positions = [e["id"][0] for e in events]
    assert positions[0] == positions[1] == positions[2] < positions[3]
    assert [e["id"][1] for e in events] == [1, 2, 3, 1]


def test_rows_of_one_copy_have_identities_of_their_own(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    with Captured(database, tmp_path).running() as captured:
        with database.connect() as c, c.cursor().copy("copy t from stdin") as copy:
            copy.write("1\n2\n3\n")
        captured.drain()
    ids = [e["id"] for e in captured.events("t")]
    assert len(set(ids)) == 3 and len({position for position, _ in ids}) == 1


def test_a_rolled_back_transaction_and_savepoint_leave_nothing(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("begin; insert into t values (1); rollback")
        database.execute("begin; insert into t values (2); savepoint s; insert into t values (3); rollback to s; commit")
        captured.drain()
    assert [e["row"]["id"] for e in captured.events("t")] == [2]


def test_an_untouched_toasted_column_is_unchanged_and_not_null(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v int, big text); alter table t alter big set storage external")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1, 1, repeat('x', 5000))")
        database.execute("update t set v = 2")
        database.execute("update t set big = null")
        captured.drain()
    events = captured.events("t")
    assert [e["unchanged"] for e in events] == [[], ["big"], []]
    assert events[2]["row"] == {"id": 1, "v": 2, "big": None}


def test_replica_identity_full_fills_an_unchanged_column_from_the_old_row(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v int, big text); alter table t alter big set storage external")
    database.execute("alter table t replica identity full")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1, 1, repeat('x', 5000))")
        database.execute("update t set v = 2")
        database.execute("update t set id = 7")
        captured.drain()
    events = captured.events("t")
    assert [e["op"] for e in events] == ["insert", "update", "leave", "enter"]
    assert events[1]["unchanged"] == [] and len(events[1]["row"]["big"]) == 5000
    assert events[1]["before"]["v"] == 1
    assert events[3]["row"]["id"] == 7 and len(events[3]["row"]["big"]) == 5000
    # Identity FULL flags every column; the key still is the primary key.
    assert captured.batches()[0].table.key == ("id",)


def test_a_key_change_is_leave_and_enter_with_one_identity(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (a int, b text, v int, big text, primary key (a, b))")
    database.execute("alter table t alter big set storage external")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1, 'x', 10, repeat('y', 5000))")
        database.execute("update t set b = 'z'")
        captured.drain()
    insert, leave, enter = captured.events("t")
    assert (leave["op"], leave["row"]["a"], leave["row"]["b"]) == ("leave", 1, "x")
    assert (enter["op"], enter["row"]["a"], enter["row"]["b"]) == ("enter", 1, "z")
    assert leave["id"] == enter["id"] != insert["id"]
    assert enter["unchanged"] == ["big"] and enter["before"]["b"] == "x"
    assert any(s.flags & SliceFlag.KEY_CHANGE for s in captured.slices())


def test_an_update_of_a_toasted_key_that_stays_is_no_key_change(database: Database, tmp_path: Path) -> None:
    """The server logs the old key when it is toasted, and leaves it out of the new row."""
    database.execute("create table t (k text primary key, v int); alter table t alter k set storage external")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (repeat('k', 2400), 1)")
        database.execute("update t set v = 2")
        captured.drain()
    events = captured.events("t")
    assert [e["op"] for e in events] == ["insert", "update"]
    assert events[1]["row"] == {"k": "k" * 2400, "v": 2} and events[1]["unchanged"] == []


def test_truncate_of_several_tables_is_one_event_each(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key); create table b (id int primary key references a)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into a values (1); insert into b values (1); truncate a cascade")
        captured.drain()
    found = {name: [(e["op"], e["id"]) for e in captured.events(name)] for name in ("a", "b")}
    assert [op for op, _ in found["a"]] == [op for op, _ in found["b"]] == ["insert", "truncate"]
    assert found["a"][1][1] != found["b"][1][1]


def test_buckets_share_out_keys_and_keep_their_order(database: Database, tmp_path: Path) -> None:
    database.execute(
        "create table t (id int primary key, v int); create table c (a int, b text, v int, primary key (a, b));"
        "create table nokey (v int); create table f (id int primary key, v int); alter table f replica identity full"
    )
    with Captured(database, tmp_path, validate_replication=False).running() as captured:
        database.execute("insert into t select g, 0 from generate_series(1, 200) g")
        database.execute("insert into c select g, 'b' || g, 0 from generate_series(1, 200) g")
        database.execute("insert into f select g, 0 from generate_series(1, 50) g")
        database.execute("insert into nokey select g from generate_series(1, 50) g")
        for i in range(3):
            database.execute(f"update t set v = {i}; update c set v = {i}; update f set v = {i} where id % 2 = 0")
        database.execute("update t set id = id + 1000 where id % 10 = 0; update c set b = 'z' where a % 7 = 0")
        database.execute("delete from t where id = 5")
        captured.drain()
    keys = {"t": ["id"], "c": ["a", "b"], "f": ["id"], "nokey": []}

    def by_key(buckets: int) -> tuple[dict[Any, list[Any]], dict[Any, set[int]]]:
        history: dict[Any, list[Any]] = defaultdict(list)
        homes: dict[Any, set[int]] = defaultdict(set)
        for bucket in range(buckets):
            for batch in captured.batches(bucket, buckets):
                for e in events_of(batch):
                    key = (batch.table.name, *(e["row"][k] for k in keys[batch.table.name]))
                    history[key].append(e)
                    homes[key].add(bucket)
        return history, homes

    one, _ = by_key(1)
    for buckets in (2, 3, 7):
        many, homes = by_key(buckets)
        assert many == one
        assert all(len(home) == 1 for home in homes.values())
        assert len({b for home in homes.values() for b in home}) == buckets


def test_a_new_column_makes_a_new_version_and_old_rows_read_by_the_old_one(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (1)")
        database.execute("alter table t add column v text default 'd'; insert into t values (2)")
        database.execute("alter table t drop column v; insert into t values (3)")
        captured.drain()
    assert [(e["version"], e["row"]) for e in captured.events("t")] == [(1, {"id": 1}), (2, {"id": 2, "v": "d"}), (3, {"id": 3})]
    flagged = [s for s in captured.slices() if s.flags & SliceFlag.SCHEMA]
    assert len(flagged) == 3 and all(s.transactions >= 1 for s in flagged)


def test_a_schema_change_inside_a_transaction_is_read_by_byte_position(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("begin; insert into t values (1); alter table t add column v int; insert into t values (2, 2); commit")
        captured.drain()
    assert [e["version"] for e in captured.events("t")] == [1, 2]


def test_a_description_repeated_after_a_reconnect_makes_no_new_version(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path)
    for i in range(3):
        with captured.running():
            database.execute(f"insert into t values ({i})")
            captured.drain()
    assert [(e["version"], e["row"]["id"]) for e in captured.events("t")] == [(1, 0), (1, 1), (1, 2)]


def test_capture_goes_on_at_the_journals_end_after_every_restart(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path)
    for i in range(6):
        with captured.running():
            database.execute(f"insert into t select g from generate_series({i * 100}, {i * 100 + 49}) g")
            if i % 2:
                captured.drain()
        database.execute(f"insert into t select g from generate_series({i * 100 + 50}, {i * 100 + 99}) g")
    with captured.running():
        captured.drain()
    events = captured.events("t")
    assert [e["row"]["id"] for e in events] == list(range(600))
    assert len({e["id"] for e in events}) == 600


def test_a_transaction_larger_than_a_slice_is_written_in_pieces_and_seen_as_a_whole(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "SLICE_BYTES", 20_000)
    database.execute("create table t (id int primary key, v text)")
    with Captured(database, tmp_path).running() as captured:
        database.execute("insert into t values (0, 'before')")
        database.execute("insert into t select g, repeat('v', 50) from generate_series(1, 3000) g")
        database.execute("insert into t values (3001, 'after')")
        captured.drain()
    slices = captured.slices()
    pieces = [s for s in slices if s.flags & SliceFlag.PIECE]
    assert len(pieces) > 5 and sum(bool(s.flags & SliceFlag.LAST_PIECE) for s in pieces) == 1
    assert len({s.last for s in pieces}) == 1 and len({s.appended_at for s in pieces}) == 1
    events = captured.events("t")
    assert [e["row"]["id"] for e in events] == list(range(3002))
    assert [e["id"][1] for e in events[1:-1]] == list(range(1, 3001))
    assert {e["id"][0] for e in events[1:-1]} == {pieces[0].last}
    assert sum(len(captured.events("t", b, 3)) for b in range(3)) == 3002


def test_a_row_larger_than_the_buffer_passes_through(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "HUGE_BYTES", 100_000)
    monkeypatch.setattr(assembly, "BUFFER_BYTES", 300_000)
    database.execute("create table t (id int primary key, v text)")
    with Captured(database, tmp_path).running() as captured:
        database.execute(
            "begin; insert into t values (1, 'small'); insert into t values (2, repeat('h', 5000000));"
            "insert into t values (3, 'x'); commit"
        )
        database.execute("insert into t values (4, repeat('i', 2000000)); update t set v = 'less' where id = 2")
        captured.drain()
    events = captured.events("t")
    expected = [(1, 1, 5), (2, 2, 5_000_000), (3, 3, 1), (1, 4, 2_000_000), (2, 2, 4)]
    assert [(e["id"][1], e["row"]["id"], len(e["row"]["v"])) for e in events] == expected
    assert set(events[1]["row"]["v"]) == {"h"}


def test_hostile_names_are_kept(database: Database, tmp_path: Path) -> None:
    database.execute('create schema "S p.ace"')
    database.execute('create table "S p.ace"."We""ird; table" ("Id" int primary key, "a b" text, "ü""" int)')
    with Captured(database, tmp_path).running() as captured:
        database.execute("""insert into "S p.ace"."We""ird; table" values (1, 'x', 2)""")
        captured.drain()
    (batch,) = captured.batches()
    assert (batch.table.schema, batch.table.name) == ("S p.ace", 'We"ird; table')
    assert batch.rows.to_pylist() == [{"Id": 1, "a b": "x", 'ü"': 2}]


def test_an_idle_database_beside_a_busy_unpublished_one_moves_its_mark(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key); create table other (v text)")
    captured = Captured(database, tmp_path, publication_tables=["public.t"])
    with captured.running():
        database.execute("insert into other select repeat('x', 1000) from generate_series(1, 5000)")
        captured.drain()
    assert captured.slices() == []


def test_the_server_is_told_the_confirmed_position_and_nothing_more(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path)
    with captured.running():
        begin = captured.source.confirmed()
        database.execute("insert into t values (1)")
        database.execute("insert into t values (2)")
        captured.drain()
        first = captured.slices()[0].first
        assert captured.source.confirmed() == begin
        captured.link.confirm(first)
        wait_until(lambda: captured.source.confirmed() == first)


def test_a_slot_that_is_read_elsewhere_is_its_own_error(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path / "a")
    with captured.running():
        database.execute("insert into t values (1)")
        captured.drain()
        second = Captured.__new__(Captured)
        second.__dict__.update(captured.__dict__)
        second.directory, second.error = tmp_path / "b", None
        with pytest.raises(SlotInUse), second.running():
            wait_until(lambda: second.error is not None)


SCALARS = [
    ("boolean", "true", True),
    ("smallint", "-32768", -32768),
    ("integer", "2147483647", 2147483647),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("oid", "4294967295", 4294967295),
    ("real", "'3.3'", pa.scalar(3.3, pa.float32()).as_py()),
    ("double precision", "'-1.7976931348623157e308'", -1.7976931348623157e308),
    ("double precision", "'infinity'", float("inf")),
    ("numeric(12,2)", "-1234567890.12", decimal.Decimal("-1234567890.12")),
    ("numeric(38,10)", "-1234567890123456789012345678.0123456789", decimal.Decimal("-1234567890123456789012345678.0123456789")),
    ("numeric(38,0)", "'99999999999999999999999999999999999999'", decimal.Decimal("99999999999999999999999999999999999999")),
    ("numeric(5,5)", "'-0.00001'", decimal.Decimal("-0.00001")),
    ("numeric", "'1e-20'", "0.00000000000000000001"),
    ("text", "''", ""),
    ("text", "E'tab\\tnew\\nline \\\\ ü 💧'", "tab\tnew\nline \\ ü 💧"),
    ("varchar(10)", "'abc'", "abc"),
    ("char(5)", "'ab'", "ab   "),
    ("bytea", "'\\x00ff10'", b"\x00\xff\x10"),
    ("bytea", "''", b""),
    ("date", "'0001-01-01'", datetime.date(1, 1, 1)),
    ("date", "'9999-12-31'", datetime.date(9999, 12, 31)),
    ("time", "'23:59:59.999999'", datetime.time(23, 59, 59, 999999)),
    ("timestamp", "'1969-12-31 23:59:59.5'", datetime.datetime(1969, 12, 31, 23, 59, 59, 500000)),
    ("timestamptz", "'2024-02-29 12:00:00.000001+02'", datetime.datetime(2024, 2, 29, 10, 0, 0, 1, datetime.UTC)),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("jsonb", "'{\"a\": 1}'", '{"a": 1}'),
    ("interval", "'1 mon 2 days 03:04:05.6'", "1 mon 2 days 03:04:05.6"),
    ("int[]", "'{1,NULL,3}'", "{1,NULL,3}"),
]


def test_scalar_values_arrive_exact_under_hostile_settings(database: Database, tmp_path: Path) -> None:
    for setting in (
        "datestyle = 'German, DMY'",
        "timezone = 'Asia/Kathmandu'",
        "extra_float_digits = -15",
        "bytea_output = 'escape'",
    ):
        database.execute(f"alter database {database.name} set {setting}")
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(SCALARS))
    database.execute(f"create table t (id int primary key, {columns})")
    with Captured(database, tmp_path).running() as captured:
        with database.connect() as c:
            # The literals are written under plain settings; what is hostile is how a careless reader would see them.
            for setting in ("datestyle = ISO", "timezone = UTC"):
                c.execute(f"set {setting}".encode())
            c.execute(f"insert into t values (1, {', '.join(literal for _, literal, _ in SCALARS)})".encode())
            c.execute("insert into t (id) values (2)")
        captured.drain()
    row, nulls = (e["row"] for e in captured.events("t"))
    assert [row[f"c{i}"] for i in range(len(SCALARS))] == [value for _, _, value in SCALARS]
    assert all(nulls[f"c{i}"] is None for i in range(len(SCALARS)))


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        ("timestamptz", "'infinity'"),
        ("timestamp", "'-infinity'"),
        ("timestamp", "'294276-12-31 23:59:59.999999'"),
        ("date", "'infinity'"),
        ("time", "'24:00:00'"),
        ("numeric(10,2)", "'NaN'"),
    ],
)
def test_a_value_that_arrow_cannot_hold_keeps_its_exact_text(database: Database, tmp_path: Path, kind: str, literal: str) -> None:
    database.execute(f"create table t (id int primary key, v {kind})")
    with Captured(database, tmp_path).running() as captured:
        database.execute(f"insert into t values (1, null), (2, {literal}), (3, null)")
        captured.drain()
    (batch,) = captured.batches()
    assert batch.rows.column(1).null_count == 3
    assert batch.odd["v"].rows.to_pylist() == [1]
    assert batch.odd["v"].texts.to_pylist() == [literal.strip("'")]


@pytest.mark.parametrize("literal", ["'0044-03-15 BC'", "'12024-01-01'", "'4713-01-01 BC'", "'5874897-12-31'"])
def test_far_dates_are_kept(database: Database, tmp_path: Path, literal: str) -> None:
    database.execute("create table t (id int primary key, v date)")
    with Captured(database, tmp_path).running() as captured:
        database.execute(f"insert into t values (1, {literal})")
        captured.drain()
    (batch,) = captured.batches()
    days = database.rows(f"select {literal}::date - '1970-01-01'::date")[0][0]
    assert batch.rows.column(1).cast(pa.int32()).to_pylist() == [days]


def test_keepalives_of_an_idle_table_do_not_fill_the_buffer(tmp_path: Path) -> None:
    """A server that is busy elsewhere sends one keepalive after the other, for hours."""
    writer = JournalWriter(tmp_path)
    writer.begin(100)
    made = assembly.Assembly(writer, RelationBook(Control("", "flow"), TypeBook(Control("", "flow"), True), {}, {}, 0))
    keepalive = b"d" + (22).to_bytes(4, "big") + b"k" + (500).to_bytes(8, "big") + bytes(8) + b"\0"
    many = keepalive * 10_000
    for _ in range(200):
        room = made.room()
        room[: len(many)] = many
        made.arrived(len(many))
        made.take()
    assert made.publish(bare=True)
    assert writer.mark == 500
    writer.close()


def test_while_the_journal_is_full_nothing_is_read_and_the_server_is_told_what_it_may_forget(
    database: Database, tmp_path: Path
) -> None:
    database.execute("create table t (id int primary key)")
    with Captured(database, tmp_path, status_interval="1s").running() as captured:
        database.execute("insert into t values (1)")
        captured.drain()
        captured.link.holding = True
        captured.link.confirm(captured.mark)
        wait_until(lambda: captured.mark in captured.link.heard)
        database.execute("insert into t values (2)")
        # The pause between two looks at the link is over when the server has been told once more.
        told = len(captured.link.heard)
        captured.link.confirm(captured.mark + 1)
        wait_until(lambda: len(captured.link.heard) > told)
        assert [e["row"]["id"] for e in captured.events("t")] == [1]
        captured.link.holding = False
        captured.drain()
    assert [e["row"]["id"] for e in captured.events("t")] == [1, 2]
