"""`toast_fetch` on a real server: what each mode makes of TOASTed columns that an update did not touch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from penstock.core.batch import Batch, Handle
from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import SourceError, SourceRights
from penstock.journal.reader import SliceReader
from penstock.journal.record import SliceFlag
from penstock.sources.postgres.decoder import PostgresDecoder
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from penstock.sources.postgres.toast import completer as completing
from penstock.sources.postgres.toast import reselect
from penstock.sources.postgres.toast.completer import PostgresCompleter
from penstock.sources.postgres.toast.keys import joined
from penstock.sources.postgres.toast.memory import Memory
from penstock.sources.postgres.toast.reselect import all_visible
from tests.batches import Change, insert, truncate, update
from tests.batches import batch as made_batch
from tests.batches import table as made_table
from tests.conftest import Database
from tests.sources.postgres.captured import Captured, events_of

TABLE = """
create table t (id int primary key, v int, big text, more text);
alter table t alter big set storage external, alter more set storage external
"""


def big(letter: str) -> str:
    return letter * 3000


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Lanes give back their connections when the test is over."""
    yield
    while Lane.made:
        Lane.made.pop().completer.close()


class Lane:
    """A lane's decoder and completer over a captured journal, one epoch at a time."""

    made: ClassVar[list[Lane]] = []

    def __init__(self, captured: Captured, mode: str, *, cache_size: int = 100, dsn: str | None = None) -> None:
        self.made.append(self)
        self.captured = captured
        self.decoder = PostgresDecoder()
        self.decoder.gives_handles = True
        dsn = dsn or captured.source.options.dsn
        self.completer = PostgresCompleter({"dsn": dsn, "flow": "flow", "mode": mode, "cache_size": cache_size})
        self.position = captured.prepared.start
        self.number = 0
        self.counts: dict[str, int] = {}

    def epoch(self, bucket: int = 0, buckets: int = 1, *, number: int | None = None) -> list[Batch]:
        """What has come since the last epoch; `number` to pretend that others have run in between."""
        self.captured.drain()
        slices = self.captured.slices(self.position)
        self.number = number or self.number + 1
        upto = slices[-1].last if slices else self.position
        epoch = Epoch("flow", "d", "src", self.number, self.position, upto, buckets, 1)
        reader = SliceReader(self.captured.directory)
        decoded = self.decoder.decode(reader, slices, bucket, buckets, lambda table: True) if slices else iter(())
        found = list(self.completer.complete(epoch, bucket, reader, slices, decoded))
        reader.close()
        self.position, self.counts = upto, dict(self.completer.counts)
        return found

    def events(self, table: str = "t", **more: Any) -> list[dict[str, Any]]:
        found = []
        for batch in self.epoch(**more):
            batch.rows.validate(full=True)
            assert batch.handle is None
            if batch.table.name == table:
                for i, event in enumerate(events_of(batch)):
                    masks = batch.read_later or (None,) * len(batch.table.columns)
                    later = [c.name for c, m in zip(batch.table.columns, masks, strict=True) if m is not None and m[i].as_py()]
                    found.append({**event, "later": later})
        return found


@pytest.fixture
def captured(database: Database, tmp_path: Path) -> Iterator[Captured]:
    database.execute(TABLE)
    with Captured(database, tmp_path).running() as running:
        yield running


def _password(database: Database) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(database.dsn)["password"])


def lane(captured: Captured, mode: str, **more: Any) -> Lane:
    return Lane(captured, mode, **more)


def test_off_makes_no_completer_and_the_others_do(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    captured = Captured(database, tmp_path)
    assert captured.source.completion() is None
    captured.source.options = captured.source.options.model_copy(update={"toast_fetch": "cache"})
    completion = captured.source.completion()
    assert completion is not None and (completion["mode"], completion["cache_size"]) == ("cache", 10_000)
    captured.source.close()


@pytest.mark.parametrize("mode", ["source", "full", "cache"])
def test_identity_full_fills_the_gap_without_any_query(database: Database, captured: Captured, mode: str) -> None:
    database.execute("alter table t replica identity full")
    database.execute(f"insert into t values (1, 1, '{big('a')}', '{big('b')}')")
    database.execute("update t set v = 2 where id = 1; update t set id = 2")
    # Nobody listens there: a query would fail.
    worker = lane(captured, mode, dsn="host=127.0.0.1 port=1 dbname=x")
    events = worker.events()
    assert [e["op"] for e in events] == ["insert", "update", "leave", "enter"]
    for event in (events[1], events[3]):
        assert (event["row"]["big"], event["row"]["more"]) == (big("a"), big("b"))
        assert event["unchanged"] == event["later"] == []
    assert worker.counts == {}


@pytest.mark.parametrize("mode", ["source", "full", "cache"])
def test_an_earlier_change_of_the_epoch_fills_the_gap_exactly(database: Database, captured: Captured, mode: str) -> None:
    database.execute(f"insert into t values (1, 1, '{big('a')}', '{big('b')}')")
    database.execute("update t set v = 2")
    database.execute(f"update t set big = '{big('c')}'")
    database.execute("update t set v = 3")
    worker = lane(captured, mode, dsn="host=127.0.0.1 port=1 dbname=x")
    events = worker.events()
    assert [(e["row"]["big"], e["row"]["more"]) for e in events] == [
        (big("a"), big("b")),
        (big("a"), big("b")),
        (big("c"), big("b")),
        (big("c"), big("b")),
    ]
    assert all(e["unchanged"] == e["later"] == [] for e in events)
    assert worker.counts == {"toast_filled": 5}


def test_source_reads_just_the_unchanged_columns_and_marks_them(database: Database, captured: Captured) -> None:
    database.execute(f"insert into t select n, n, repeat(chr(96 + n), 3000), '{big('z')}' from generate_series(1, 3) n")
    worker = lane(captured, "source")
    worker.events()
    database.execute("update t set v = 10 where id <= 2; update t set v = 11, more = 'small' where id = 2")
    # The server is ahead of the log that the lane has: what is read is newer than the change, and says so.
    database.execute(f"update t set v = 12, big = '{big('y')}' where id = 1")
    events = worker.events()
    assert [(e["row"]["v"], e["row"]["big"][0], e["row"]["more"][:5], e["later"]) for e in events] == [
        (10, "y", "zzzzz", ["big", "more"]),
        (10, "b", "small", ["big", "more"]),
        (11, "b", "small", ["big"]),
        (12, "y", "zzzzz", ["more"]),
    ]
    assert all(e["unchanged"] == [] for e in events)
    assert worker.counts == {"toast_fetched": 6}


def test_full_reads_the_whole_row(database: Database, captured: Captured) -> None:
    database.execute(f"insert into t values (1, 1, '{big('a')}', null)")
    worker = lane(captured, "full")
    worker.events()
    database.execute("update t set v = 2")
    database.execute("update t set v = 3")
    events = worker.events()
    assert [(e["row"]["v"], e["row"]["big"], e["row"]["more"]) for e in events] == [(3, big("a"), None)] * 2
    assert all(e["later"] == ["v", "big", "more"] for e in events)
    assert worker.counts == {"toast_fetched": 6}


@pytest.mark.parametrize("mode", ["source", "full"])
def test_a_row_that_is_gone_keeps_its_gap_and_is_counted(database: Database, captured: Captured, mode: str) -> None:
    database.execute(f"insert into t select n, n, '{big('a')}', 'm' from generate_series(1, 2) n")
    worker = lane(captured, mode)
    worker.events()
    database.execute("update t set v = 5")
    database.execute("delete from t where id = 1")
    first, second, gone = worker.events()
    assert (first["unchanged"], first["later"], first["row"]["big"], first["row"]["v"]) == (["big"], [], None, 5)
    assert second["row"]["big"] == big("a") and second["unchanged"] == [] and gone["op"] == "delete"
    assert worker.counts == {"toast_fetched": 1 if mode == "source" else 3, "toast_missing": 1}


@pytest.mark.parametrize("mode", ["source", "full", "cache"])
def test_a_key_change_takes_its_values_along(database: Database, captured: Captured, mode: str) -> None:
    database.execute(f"insert into t values (1, 1, '{big('a')}', '{big('b')}'), (5, 5, '{big('e')}', null)")
    worker = lane(captured, mode)
    worker.events()
    database.execute("update t set id = 2 where id = 1")
    database.execute("update t set v = 7 where id = 2")
    database.execute("update t set id = 1 where id = 5")
    events = [e for e in worker.events() if e["op"] != "leave"]
    assert [(e["op"], e["row"]["id"], e["row"]["big"]) for e in events] == [
        ("enter", 2, big("a")),
        ("update", 2, big("a")),
        ("enter", 1, big("e")),
    ]
    assert all(e["unchanged"] == [] for e in events)
    assert all(bool(e["later"]) == (mode != "cache") for e in events)


LETTERS = "\\N\n\t\r\b'\",{}%sé"

KEYS = {
    "composite": ("a int, b text, c uuid", "a, b, c", "1, $q${letters}$q$, '6f1b9f6e-0000-4000-8000-000000000001'"),
    "quoted": ('"Id " int, "sel""ect" text, "a.b%s{0}" text', '"sel""ect", "Id ", "a.b%s{0}"', "1, 'NULL', ''"),
    "dates": ("a date, b timestamptz, c numeric", "a, b, c", "'-infinity', '2020-02-29 12:00:00.000001+05:30', 1.500"),
    "bytes": ("a bytea, b boolean, c interval", "a, b, c", "'\\x00ff5c27', false, '1 mon -3 days'"),
    "own types": ("a shop.colour, b shop.amount, c int4range", "a, b, c", "'light red', 5, '[1,5)'"),
    "bits": ("a bit(5), b char(4), c inet", "a, b, c", "'10101', 'ab', '10.0.0.1'"),
    "array": ("a int[], b real, c oid", "a, b, c", "array[1,2], 1.1, 4000000000"),
}


@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_found_by_keys_of_any_kind(database: Database, tmp_path: Path, kind: str) -> None:
    columns, key, value = KEYS[kind]
    value = value.format(letters=LETTERS)
    name = 'shop."We""ird; %s {table}"'
    database.execute("create schema shop; create type shop.colour as enum ('light red', 'b')")
    database.execute("create domain shop.amount as int check (value > 0)")
    database.execute(f'create table {name} ({columns}, "v %" int, "Big{{}}%s" text, primary key ({key}))')
    database.execute(f'alter table {name} alter "Big{{}}%s" set storage external')
    with Captured(database, tmp_path).running() as captured:
        database.execute(f"insert into {name} values ({value}, 1, $q${LETTERS * 600}$q$)")
        worker = Lane(captured, "source")
        worker.epoch()
        database.execute(f'update {name} set "v %" = 2')
        (event,) = worker.events('We"ird; %s {table}')
    assert event["row"]["Big{}%s"] == LETTERS * 600
    assert event["later"] == ["Big{}%s"] and worker.counts == {"toast_fetched": 1}


def test_values_read_again_are_those_of_the_log(database: Database, tmp_path: Path) -> None:
    """Hostile role settings included: the same row through the stream and through the re-select."""
    role = f"r_{database.name}"
    columns = "b bytea, j jsonb, a text[], n numeric, h int4[], ts tstzrange[], f float8[]"
    database.execute(f"create table t (id int primary key, v int, {columns})")
    for column in ("b", "j", "a", "n", "h", "ts", "f"):
        database.execute(f"alter table t alter {column} set storage external")
    database.execute(
        f"create role {role} login superuser password '{_password(database)}'; alter role {role} set datestyle = 'German, DMY';"
        f"alter role {role} set timezone = 'Asia/Kolkata'; alter role {role} set bytea_output = 'escape';"
        f"alter role {role} set extra_float_digits = -15; alter role {role} set search_path = 'nowhere'"
    )
    values = """
        decode(repeat('00ff5c0a09', 800), 'hex'), (select jsonb_agg(E'a\\n\\\\"' || i) from generate_series(1, 900) i),
        (select array_agg(E'\\\\N\\t' || i) from generate_series(1, 900) i), repeat('123456789', 900)::numeric / 7,
        (select array_agg(i) from generate_series(1, 2000) i),
        (select array_agg(tstzrange('epoch', 'epoch'::timestamptz + i * interval '1 s')) from generate_series(1, 400) i),
        (select array_agg(i / 3.0) from generate_series(1, 900) i)
    """
    dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role)
    try:
        with Captured(database, tmp_path).running() as captured:
            worker = Lane(captured, "source", dsn=dsn)
            database.execute(f"insert into t select 1, 1, {values}")
            (inserted,) = worker.events()
            database.execute("update t set v = 2")
            (updated,) = worker.events()
    finally:
        worker.completer.close()
        database.execute(f"drop owned by {role}; drop role {role}")
    assert set(updated["later"]) == {"b", "j", "a", "n", "h", "ts", "f"}
    assert updated["row"] == {**inserted["row"], "v": 2}


def test_a_table_without_a_key_keeps_its_gap(database: Database, captured: Captured) -> None:
    database.execute(f"insert into t values (1, 1, '{big('a')}', null)")
    worker = lane(captured, "source")
    worker.events()
    database.execute("update t set v = 2")
    captured.drain()
    reader = SliceReader(captured.directory)
    (batch,) = worker.decoder.decode(reader, captured.slices(worker.position), 0, 1, lambda table: True)
    assert batch.handle is not None
    keyless = replace(batch, table=replace(batch.table, key=()), handle=replace(batch.handle, keys=()))
    (found,) = worker.completer.complete(Epoch("flow", "d", "src", 9, 0, 1, 1, 1), 0, reader, [], iter([keyless]))
    reader.close()
    assert found.unchanged[2] is not None and found.unchanged[2].to_pylist() == [True]
    assert worker.completer.counts == {"toast_missing": 1}


def test_a_table_that_was_renamed_is_found_and_one_that_was_made_anew_is_not_taken_for_it(
    database: Database, captured: Captured
) -> None:
    database.execute(f"insert into t values (1, 1, '{big('a')}', null)")
    worker = lane(captured, "source")
    worker.events()
    database.execute("update t set v = 0")
    assert [e["row"]["big"] for e in worker.events()] == [big("a")]
    database.execute("update t set v = 2")
    captured.drain()
    database.execute('create schema other; alter table t set schema other; alter table other.t rename to "T2"')
    database.execute(f"{TABLE}; insert into t values (1, 1, '{big('y')}', null)")
    assert [e["row"]["big"] for e in worker.events()] == [big("a")]
    database.execute('update other."T2" set v = 3')
    captured.drain()
    database.execute(f"drop table other.\"T2\"; create table other.\"T2\" as select 1 id, 1 v, '{big('x')}' big, '' more")
    (event,) = worker.events("T2")
    assert event["unchanged"] == ["big"] and worker.counts == {"toast_missing": 1}


@pytest.mark.parametrize(
    "change",
    [
        "alter table t drop column big",
        "alter table t alter big type bytea using big::bytea",
        "alter table t rename big to was",
        "alter table t drop constraint t_pkey; alter table t replica identity full",
    ],
)
def test_a_column_that_is_another_one_now_keeps_its_gap(database: Database, captured: Captured, change: str) -> None:
    database.execute(f"insert into t values (1, 1, '{big('a')}', null)")
    worker = lane(captured, "source")
    worker.events()
    database.execute("update t set v = 2")
    captured.drain()
    database.execute(change)
    (event,) = worker.events()
    assert event["unchanged"] == ["big"] and event["row"]["v"] == 2 and worker.counts == {"toast_missing": 1}


def test_an_enum_label_in_the_key_that_was_renamed_keeps_the_gap(database: Database, tmp_path: Path) -> None:
    database.execute("create type colour as enum ('red', 'blue'); create table t (id colour primary key, v int, big text)")
    database.execute("alter table t alter big set storage external")
    with Captured(database, tmp_path).running() as captured:
        worker = Lane(captured, "source")
        database.execute(f"insert into t values ('red', 1, '{big('a')}')")
        worker.events()
        database.execute("update t set v = 2")
        captured.drain()
        database.execute("alter type colour rename value 'red' to 'pink'")
        (event,) = worker.events()
        assert event["unchanged"] == ["big"] and worker.counts == {"toast_missing": 1}


def test_an_extension_s_type_as_key_is_compared_by_its_own_operator(database: Database, tmp_path: Path) -> None:
    """With an empty search path `=` alone would not be found."""
    database.execute(
        """
        create schema ext;
        create type ext.pair as (a int, b text);
        create function ext.lt(ext.pair, ext.pair) returns bool language sql immutable as 'select $1.a < $2.a';
        create function ext.le(ext.pair, ext.pair) returns bool language sql immutable as 'select $1.a <= $2.a';
        create function ext.eq(ext.pair, ext.pair) returns bool language sql immutable as 'select $1.a = $2.a';
        create function ext.ge(ext.pair, ext.pair) returns bool language sql immutable as 'select $1.a >= $2.a';
        create function ext.gt(ext.pair, ext.pair) returns bool language sql immutable as 'select $1.a > $2.a';
        create function ext.cmp(ext.pair, ext.pair) returns int language sql immutable as 'select sign($1.a - $2.a)::int';
        create operator ext.<< (function = ext.lt, leftarg = ext.pair, rightarg = ext.pair);
        create operator ext.<<= (function = ext.le, leftarg = ext.pair, rightarg = ext.pair);
        create operator ext.=== (function = ext.eq, leftarg = ext.pair, rightarg = ext.pair);
        create operator ext.>>= (function = ext.ge, leftarg = ext.pair, rightarg = ext.pair);
        create operator ext.>> (function = ext.gt, leftarg = ext.pair, rightarg = ext.pair);
        create operator class ext.pair_ops default for type ext.pair using btree as operator 1 ext.<<, operator 2 ext.<<=,
            operator 3 ext.===, operator 4 ext.>>=, operator 5 ext.>>, function 1 ext.cmp(ext.pair, ext.pair);
        create table t (id ext.pair primary key, v int, big text);
        alter table t alter big set storage external
        """
    )
    with Captured(database, tmp_path).running() as captured:
        worker = Lane(captured, "source")
        database.execute(f"insert into t values ((1, 'a b'), 1, '{big('a')}')")
        worker.events()
        database.execute("update t set v = 2")
        assert [e["row"]["big"] for e in worker.events()] == [big("a")]


def test_partitions_are_read_through_their_root_and_heirs_are_not_read(database: Database, tmp_path: Path) -> None:
    database.execute(
        """
        create table root (id int primary key, v int, big text) partition by range (id);
        create table low partition of root for values from (0) to (10);
        create table high partition of root for values from (10) to (20);
        alter table low alter big set storage external; alter table high alter big set storage external;
        create table parent (id int primary key, v int, big text); alter table parent alter big set storage external;
        create table heir (primary key (id)) inherits (parent)
        """
    )
    with Captured(database, tmp_path).running() as captured:
        worker = Lane(captured, "source")
        database.execute(f"insert into root values (1, 1, '{big('a')}'), (11, 1, '{big('b')}')")
        database.execute(f"insert into parent values (1, 1, '{big('c')}'); insert into heir values (1, 1, '{big('d')}')")
        worker.epoch()
        database.execute("update root set v = 2; update only parent set v = 2")
        found = {(b.table.name, e["row"]["id"]): e["row"]["big"] for b in worker.epoch() for e in events_of(b)}
    assert found == {("root", 1): big("a"), ("root", 11): big("b"), ("parent", 1): big("c")}


def test_much_is_read_in_parts_that_lose_nothing(database: Database, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "FETCH_BYTES", 20_000)
    database.execute("insert into t select n, n, repeat(chr(97 + n % 20), 3000), null from generate_series(1, 50) n")
    worker = lane(captured, "source")
    worker.events()
    database.execute("update t set v = 0 where id % 2 = 0; update t set id = id + 1000 where id % 5 = 0; update t set v = v - 1")
    batches = worker.epoch()
    assert len(batches) > 10
    events = [e for b in batches for e in events_of(b)]
    assert [e["id"] for e in events] == sorted(e["id"] for e in events)
    new = [e for e in events if e["op"] != "leave"]
    assert len(new) == 25 + 10 + 50
    for event in new:
        number = event["row"]["id"]
        # Keys that moved on meanwhile are not there any more: their earlier changes stay without the value.
        moved = number < 1000 and number % 5 == 0
        assert event["unchanged"] == (["big"] if moved else [])
        assert moved or event["row"]["big"] == chr(97 + number % 1000 % 20) * 3000


def test_the_cache_answers_across_epochs_and_only_with_what_it_has_seen(database: Database, captured: Captured) -> None:
    worker = lane(captured, "cache", dsn="host=127.0.0.1 port=1 dbname=x")
    database.execute(f"insert into t values (1, 1, '{big('a')}', '{big('b')}'), (2, 2, '{big('c')}', 'small')")
    worker.events()
    database.execute("update t set v = 10")
    events = worker.events()
    assert [(e["row"]["big"], e["row"]["more"]) for e in events] == [(big("a"), big("b")), (big("c"), "small")]
    assert all(e["later"] == e["unchanged"] == [] for e in events)
    assert worker.counts == {"toast_filled": 3}
    database.execute(f"update t set big = '{big('d')}' where id = 1")
    (carried,) = worker.events()
    assert (carried["row"]["big"], carried["row"]["more"]) == (big("d"), big("b"))
    database.execute("update t set v = 11 where id = 1")
    (event,) = worker.events()
    assert (event["row"]["big"], event["row"]["more"]) == (big("d"), big("b"))


FORGET: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a missed epoch": ([], {"number": 7}),
    "an epoch seen twice": ([], {"number": 1}),
    "another share of the keys": ([], {"buckets": 2, "bucket": 0}),
    "a delete and an insert elsewhere": (["delete from t"], {}),
    "a truncate": (["truncate t"], {}),
    "a table made anew": (["drop table t", TABLE], {}),
    "a new column": (["alter table t add w int"], {}),
    "a rewrite that the log does not show": (["alter table t alter big type text using replace(big, 'a', 'b')"], {}),
}


@pytest.mark.parametrize("reason", FORGET)
def test_the_cache_forgets_after(database: Database, captured: Captured, reason: str) -> None:
    """Whatever is filled is what the server has; what could be stale stays unknown."""
    statements, place = FORGET[reason]
    worker = lane(captured, "cache")
    # Text that does not shrink: a rewrite brings compression back.
    noise = "(select string_agg(md5(i::text), '') from generate_series(1, 200) i)"
    database.execute(f"insert into t select n, n, {noise}, null from generate_series(1, 8) n")
    worker.events()
    for statement in statements:
        database.execute(statement)
    if reason in ("a delete and an insert elsewhere", "a truncate"):
        worker.events()
        assert len(worker.completer._memory) == 0
        return
    if reason == "a table made anew":
        database.execute("alter publication penstock_flow add table t")
        database.execute("insert into t select n, n, 'small', null from generate_series(1, 8) n")
        assert [e["row"]["big"] for e in worker.events()] == ["small"] * 8
        return
    database.execute("update t set v = v + 1")
    events = worker.events(**place)
    assert events and all(e["unchanged"] == ["big"] and e["row"]["big"] is None for e in events)


def test_a_rewrite_within_an_epoch_parts_what_was_before_from_what_comes_after(database: Database, captured: Captured) -> None:
    """Also in the rewrite's own transaction; another table is not touched by it."""
    noise = "(select string_agg(md5(i::text), '') from generate_series(1, 200) i)"
    database.execute("create table u (like t including all); alter publication penstock_flow add table u")
    for table in ("t", "u"):
        database.execute(f"insert into {table} select n, n, {noise}, null from generate_series(1, 3) n")
    rewrite = "alter table t alter big type text using replace(big, 'a', 'b')"
    worker = lane(captured, "cache")
    worker.epoch()
    database.execute("update t set v = 10 where id = 1; update u set v = 10 where id = 1")
    # A change that lies in one slice with the rewrite is not told apart from it.
    captured.drain()
    with database.connect() as connection, connection.transaction():
        connection.execute("update t set v = 11 where id = 1")
        connection.execute(rewrite.encode())
        connection.execute("update t set v = 12 where id = 1")
    database.execute("update t set v = 13 where id = 1; update u set v = 13 where id = 1")
    database.execute("update t set big = big || 'x' where id = 1")
    database.execute("update t set v = 14 where id = 1; update t set v = 14 where id = 2")
    slices = captured.slices(worker.position)
    batches = worker.epoch()
    assert any(s.flags & SliceFlag.RETOLD for s in slices or captured.slices())
    known = {(b.table.name, e["row"]["v"], e["row"]["id"]): not e["unchanged"] for b in batches for e in events_of(b)}
    now = database.rows("select big from t where id = 1")[0][0]
    last = [e["row"]["big"] for b in batches for e in events_of(b) if b.table.name == "t" and e["row"]["id"] == 1][-1]
    assert last == now
    assert known == {
        ("t", 10, 1): True, ("u", 10, 1): True, ("t", 11, 1): False, ("t", 12, 1): False, ("t", 13, 1): True, ("u", 13, 1): True,
        ("t", 14, 1): True, ("t", 14, 2): False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "publish", "sees_all"),
    [
        ({}, "insert, update, delete, truncate", True),
        ({}, "insert, update", True),
        ({}, "update, delete", False),
        ({"origin": "none"}, "insert, update, delete, truncate", False),
    ],
)
def test_nothing_is_remembered_where_changes_may_pass_unseen(
    database: Database, tmp_path: Path, options: dict[str, Any], publish: str, sees_all: bool
) -> None:
    database.execute(TABLE)
    database.execute(f"create publication mine for table t with (publish = '{publish}')")
    captured = Captured(database, tmp_path, publication="mine", toast_fetch="source", **options)
    completion = captured.source.completion()
    captured.source.close()
    assert completion is not None and completion["sees_all"] is sees_all
    memory = PostgresCompleter(completion)
    assert memory._sees_all is sees_all


def test_a_truncate_empties_the_memory_of_its_table_only() -> None:
    """On a server no row could be updated afterwards; rows that were not there are not kept all the same."""
    schema = made_table({"id": pa.int32(), "v": pa.int32(), "big": pa.string()}, identity="1")
    other = replace(schema, name="other", identity="2")
    memory = Memory(10)

    def take(table: TableSchema, *changes: Change) -> list[list[bool] | None]:
        batch = made_batch(table, changes)
        keys = (batch.rows.column(0).cast(pa.string()),)
        return [None if m is None else m.to_pylist() for m in memory.take(replace(batch, handle=Handle(keys, {})))[0].unchanged]

    take(schema, insert({"id": 1, "v": 1, "big": big("a")}), insert({"id": 2, "v": 1, "big": big("b")}))
    take(other, insert({"id": 1, "v": 1, "big": big("c")}))
    assert take(schema, update({"id": 1, "v": 2}), truncate(), update({"id": 2, "v": 2}))[2] == [False, False, True]
    assert len(memory) == 1
    assert take(other, update({"id": 1, "v": 2}))[2] is None


def test_a_cache_that_could_be_stale_is_refused() -> None:
    with pytest.raises(ValueError, match="stale"):
        PostgresOptions(dsn="dbname=x", origin="none", toast_fetch="cache")


def test_the_cache_keeps_the_rows_that_were_used_last(database: Database, captured: Captured) -> None:
    worker = lane(captured, "cache", cache_size=3)
    database.execute(f"insert into t select n, n, '{big('a')}', null from generate_series(1, 3) n")
    worker.events()
    database.execute("update t set v = 0 where id = 1")
    worker.events()
    database.execute(f"insert into t values (4, 4, '{big('a')}', null)")
    worker.events()
    database.execute("update t set v = 9 where id = 2; update t set v = 9 where id = 1; update t set v = 9 where id in (3, 4)")
    assert {e["row"]["id"]: e["unchanged"] for e in worker.events()} == {1: [], 2: ["big"], 3: [], 4: []}


def test_small_rows_cost_the_cache_nothing(database: Database, captured: Captured) -> None:
    worker = lane(captured, "cache")
    database.execute("insert into t select n, n, 'x', repeat('y', 40) from generate_series(1, 50) n")
    worker.events()
    assert len(worker.completer._memory) == 0


def test_a_server_that_is_down_is_an_error_to_be_tried_again_and_then_goes_on(tmp_path: Path) -> None:
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        database = Database(server, "postgres")
        database.execute(TABLE)
        with Captured(database, tmp_path / "journal").running() as captured:
            worker = Lane(captured, "source")
            database.execute(f"insert into t values (1, 1, '{big('a')}', null)")
            worker.events()
            database.execute("update t set v = 2")
            (event,) = worker.events()
            database.execute("update t set v = 3")
            captured.drain()
            # The connection that is kept is cut; the next question opens another one.
            database.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name like 'penstock%' and backend_type = 'client backend'"
            )
            (event,) = worker.events()
            assert event["row"]["big"] == big("a") and event["row"]["v"] == 3
            database.execute("update t set v = 4")
            captured.drain()
            slices = captured.slices(worker.position)
        server.kill()
        reader = SliceReader(captured.directory)
        decoded = worker.decoder.decode(reader, slices, 0, 1, lambda table: True)
        with pytest.raises(SourceError) as failure:
            list(worker.completer.complete(Epoch("flow", "d", "src", 9, 0, 1, 1, 1), 0, reader, slices, decoded))
        assert failure.value.retry == "timed"
        server.start()
        decoded = worker.decoder.decode(reader, slices, 0, 1, lambda table: True)
        (batch,) = worker.completer.complete(Epoch("flow", "d", "src", 9, 0, 1, 1, 1), 0, reader, slices, decoded)
        assert batch.rows.to_pylist() == [{"id": 1, "v": 4, "big": big("a"), "more": None}]
        worker.completer.close()
        reader.close()


def test_a_role_that_may_not_read_the_table_is_named_with_the_grant(database: Database, captured: Captured) -> None:
    role = f"r_{database.name}"
    database.execute(f"create role {role} login password '{_password(database)}'")
    worker = lane(captured, "source", dsn=psycopg.conninfo.make_conninfo(database.dsn, user=role))
    database.execute(f"insert into t values (1, 1, '{big('a')}', null)")
    worker.events()
    database.execute("update t set v = 2")
    with pytest.raises(SourceRights, match=r"public\.t") as failure:
        worker.events()
    assert 'GRANT SELECT ON "public"."t"' in failure.value.remedy
    worker.completer.close()
    database.execute(f"drop role {role}")


def test_doctor_names_the_tables_that_may_not_be_read_and_their_grants_mend_it(database: Database, tmp_path: Path) -> None:
    role = f"r_{database.name}"
    database.execute(f"{TABLE}; create table f (id int primary key); alter table f replica identity full")
    database.execute(f"create role {role} login superuser password '{_password(database)}'")
    dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role)
    source = PostgresSource("flow", PostgresOptions(dsn=dsn, toast_fetch="full"))
    try:
        assert [f for f in source.check() if f.subject.startswith("reading")] == []
        database.execute(f"alter role {role} nosuperuser replication")
        (finding,) = [f for f in source.check() if f.subject.startswith("reading")]
        assert (finding.ok, finding.code, finding.subject) == (False, "source_rights", "reading public.t")
        assert finding.remedy is not None
        database.execute(finding.remedy)
        assert [f for f in source.check() if f.subject.startswith("reading")] == []
    finally:
        source.close()
        database.execute(f"drop owned by {role}; drop role {role}")


@pytest.mark.parametrize("mode", ["source", "cache"])
def test_streamed_transactions_with_savepoints_are_completed_too(database: Database, tmp_path: Path, mode: str) -> None:
    """They describe their tables anew each time, so that the cache does not trust itself across them."""
    database.execute(TABLE)
    database.execute(f"alter database {database.name} set debug_logical_replication_streaming = immediate")
    with Captured(database, tmp_path).running() as captured:
        worker = Lane(captured, mode)
        database.execute(f"insert into t values (1, 1, '{big('a')}', null)")
        worker.events()
        with database.connect() as connection, connection.transaction():
            connection.execute("update t set v = 2")
            for v, goes in ((3, True), (4, False)):
                with connection.transaction(force_rollback=goes):
                    connection.execute("update t set v = %s", (v,))
        events = worker.events()
        assert any(s.flags & SliceFlag.STREAMED for s in captured.slices())
    assert [e["row"]["v"] for e in events] == [2, 4]
    known = mode == "source"
    assert [e["row"]["big"] for e in events] == [big("a") if known else None] * 2
    assert [e["later"] for e in events] == [["big"] if known else []] * 2


def test_keys_of_several_columns_are_kept_apart() -> None:
    first, second = pa.array(["a:b", "a", "1"]), pa.array(["c", "b:c", ""])
    assert len(set(joined([first, second]).to_pylist())) == 3


def test_a_commit_that_others_do_not_see_yet_is_waited_for(database: Database, captured: Captured) -> None:
    """A commit that waits for a synchronous standby is in the log before anybody sees it."""
    database.execute(f"insert into t values (1, 1, '{big('a')}', null)")
    worker = lane(captured, "source")
    worker.events()
    # Two changes: the value that the second one leaves out is in the first, of an epoch before.
    with database.connect() as connection:
        connection.execute("set synchronous_commit = 'remote_apply'")
        database.execute("alter system set synchronous_standby_names = 'nobody'")
        database.execute("select pg_reload_conf()")
        time.sleep(0.3)
        waiting = threading.Thread(
            target=lambda: connection.execute(f"update t set big = '{big('n')}', v = 2; update t set v = 3".encode())
        )
        waiting.start()
        try:
            assert connection.info.backend_pid
            captured.drain()
            while not captured.slices(worker.position):
                time.sleep(0.01)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(reselect, "PATIENCE", 0.1)
                patch.setattr(worker.completer._memory, "take", lambda batch, doubts: (batch, 0))
                with pytest.raises(SourceError, match="does not show it") as failure:
                    worker.events()
            assert failure.value.retry == "timed"
        finally:
            with psycopg.connect(database.dsn, autocommit=True) as other:
                other.execute("set synchronous_commit = 'local'")
                other.execute("alter system reset synchronous_standby_names")
                other.execute("select pg_reload_conf()")
            waiting.join(30)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker.completer._memory, "take", lambda batch, doubts: (batch, 0))
            events = worker.events()
        assert [e["row"]["big"] for e in events] == [big("n")] * 2


@pytest.mark.parametrize(
    ("transaction", "snapshot", "visible"),
    [
        (99, "100:100:", True),
        (100, "100:100:", False),
        (105, "100:110:105,107", False),
        (106, "100:110:105,107", True),
        (3, f"{(1 << 32) + 2}:{(1 << 32) + 2}:", False),
        (1, f"{(1 << 32) + 2}:{(1 << 32) + 2}:", True),
        (0xFFFFFFFE, f"{(1 << 32) + 2}:{(1 << 32) + 2}:", True),
        (0xFFFFFFFE, f"{(1 << 32) - 8}:{(1 << 32) - 4}:", False),
    ],
)
def test_what_a_snapshot_contains_is_decided_by_transaction(transaction: int, snapshot: str, visible: bool) -> None:
    assert all_visible(np.array([transaction]), snapshot) is visible


def test_parts_are_arrow_all_the_way(database: Database, captured: Captured) -> None:
    """A batch that the completer made can be filtered and cast like any other."""
    database.execute(f"insert into t values (1, 1, '{big('a')}', null), (2, 2, '{big('b')}', null)")
    worker = lane(captured, "source")
    worker.events()
    database.execute("update t set v = 0")
    (batch,) = worker.epoch()
    kept = batch.filter(pa.array([False, True]))
    assert [None if m is None else m.to_pylist() for m in kept.read_later] == [None, None, [True], None]
