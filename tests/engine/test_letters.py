"""Dead letters through a destination's loop: nothing is lost, nothing is passed silently, each key keeps its order."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from penstock.control.letters import Chosen, LetterDesk
from penstock.core.flow import DeadLetterRules
from penstock.destinations.files.reader import read_changes
from penstock.ledger.letters import Letter
from penstock.observe import failpoints
from tests.conftest import Database
from tests.destinations.http.receiver import Arrived, Receiver, reply
from tests.destinations.postgres import subject
from tests.engine.delivery import Delivery, deadly_failpoints
from tests.flows import wait_until

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
SCHEMA = """
create table orders (id int primary key, n numeric(5,2), big text);
alter table orders alter big set storage external;
create table lines (a int, b text, n numeric(5,2), primary key (a, b))
"""


@pytest.fixture
def delivery(database: Database, tmp_path: Path) -> Iterator[Delivery]:
    database.execute(SCHEMA)
    made = Delivery(database, tmp_path, "duckdb", path=str(tmp_path / "shop.duckdb"))
    with made.captured.running():
        yield made
        made.stop()


def rows(delivery: Delivery, table: str = "orders") -> list[tuple[Any, ...]]:
    """The destination's rows; it has to have stopped."""
    with contextlib.closing(duckdb.connect(str(delivery.options["path"]), read_only=True)) as connection:
        return connection.execute(f"select * from public.{table} order by all").fetchall()


def letters(delivery: Delivery) -> list[Letter]:
    with LetterDesk("flow", delivery.state) as desk:
        return desk.find(Chosen())


def summary(delivery: Delivery) -> list[tuple[Any, ...]]:
    return [(x.key, x.op, x.state, x.attempts) for x in letters(delivery)]


def command(delivery: Delivery, name: str, **chosen: Any) -> None:
    with LetterDesk("flow", delivery.state) as desk:
        getattr(desk, name)(desk.find(Chosen(**chosen)))


def test_a_refused_change_waits_with_all_that_follows_it_and_is_replayed_in_order(delivery: Delivery, database: Database) -> None:
    loop = delivery.start()
    database.execute("insert into orders values (1, 1), (2, 'NaN'), (3, 3)")
    database.execute("update orders set n = 5 where id = 2")
    delivery.settle()
    database.execute("update orders set big = repeat('x', 5000) where id = 2; update orders set id = 4, n = 6 where id = 2")
    database.execute("update orders set n = 7 where id = 4; update orders set n = 8 where id = 1")
    delivery.settle()
    two, four = '{"id":2}', '{"id":4}'
    waiting = [
        (two, "update", "waiting", 0),
        (two, "update", "waiting", 0),
        (four, "update", "waiting", 0),
        (four, "update", "waiting", 0),
    ]
    assert summary(delivery) == [(two, "insert", "open", 1), *waiting]
    assert loop.status.letters == 5 and loop.status.counts == {"dead_letters": 1, "dead_letters_waiting": 4}
    assert "numeric(5,2)" in letters(delivery)[0].reason and "NaN" not in letters(delivery)[0].reason
    # Asked for by its last letter, the whole key comes, is refused again at its first, and waits again.
    command(delivery, "replay", ids=[letters(delivery)[-1].id])
    delivery.settle(with_replays=True)
    assert summary(delivery) == [(two, "insert", "open", 2), *waiting]
    delivery.stop()
    assert rows(delivery) == [(1, 8, None), (3, 3, None)]
    # A destination that takes NULL for it is given everything in order, and later changes again.
    delivery.options["on_unrepresentable"] = "null"
    delivery.start()
    command(delivery, "replay", table="orders")
    delivery.settle(with_replays=True)
    database.execute("update orders set n = 9 where id = 4")
    delivery.settle()
    assert letters(delivery) == []
    delivery.stop()
    assert rows(delivery) == [(1, 8, None), (3, 3, None), (4, 9, "x" * 5000)]


def test_what_waits_behind_a_discarded_letter_is_delivered(delivery: Delivery, database: Database) -> None:
    delivery.start()
    database.execute("insert into orders values (1, 'NaN', 'b'); update orders set n = 2 where id = 1")
    delivery.settle()
    command(delivery, "discard", ids=[letters(delivery)[0].id])
    delivery.settle(with_replays=True)
    assert letters(delivery) == []
    delivery.stop()
    assert rows(delivery) == [(1, 2, "b")]


def test_with_follow_later_changes_are_delivered(delivery: Delivery, database: Database) -> None:
    delivery.rules = DeadLetterRules(later="follow")
    delivery.start()
    database.execute("insert into orders values (1, 'NaN'); update orders set n = 2 where id = 1")
    delivery.settle()
    database.execute("update orders set n = 3 where id = 1")
    delivery.settle()
    assert summary(delivery) == [('{"id":1}', "insert", "open", 1)]
    delivery.stop()
    assert rows(delivery) == [(1, 3, None)]


def test_a_truncate_closes_the_letters_of_its_table(delivery: Delivery, database: Database) -> None:
    loop = delivery.start()
    database.execute("insert into orders values (1, 'NaN'), (2, 'NaN'); insert into lines values (1, 'x', 'NaN')")
    delivery.settle()
    database.execute("update orders set n = 1 where id = 1; truncate orders; insert into orders values (1, 4), (2, 'NaN')")
    delivery.settle()
    assert summary(delivery) == [('{"a":1,"b":"x"}', "insert", "open", 1), ('{"id":2}', "insert", "open", 1)]
    assert loop.status.counts["dead_letters_truncated"] == 3
    delivery.stop()
    assert rows(delivery) == [(1, 4, None)]


def test_a_flow_that_does_not_allow_it_stops_at_the_change(delivery: Delivery, database: Database) -> None:
    delivery.rules = DeadLetterRules(enabled=False)
    loop = delivery.start()
    database.execute("insert into orders values (1, 'NaN')")
    delivery.captured.drain()
    loop.notice()
    wait_until(lambda: loop.error is not None, 60, "the destination goes on")
    assert loop.error is not None and loop.error.code == "value_unrepresentable" and letters(delivery) == []


def test_more_letters_than_allowed_stop_the_destination_and_none_is_lost(delivery: Delivery, database: Database) -> None:
    delivery.rules = DeadLetterRules(max_open=3)
    loop = delivery.start()
    database.execute("insert into orders select n, 'NaN' from generate_series(1, 3) n")
    delivery.settle()
    database.execute("insert into orders values (4, 'NaN')")
    delivery.captured.drain()
    loop.notice()
    wait_until(lambda: loop.error is not None, 60, "the destination goes on")
    assert loop.error is not None and loop.error.code == "dead_letters_full" and len(letters(delivery)) == 3
    delivery.stop()
    command(delivery, "discard", ids=[letters(delivery)[0].id])
    delivery.start()
    delivery.settle()
    assert [x.key for x in letters(delivery)] == ['{"id":2}', '{"id":3}', '{"id":4}']


def test_letters_that_are_too_old_are_removed_and_counted(delivery: Delivery, database: Database) -> None:
    delivery.rules = DeadLetterRules.model_validate({"max_age": "1us"})
    loop = delivery.start()
    database.execute("insert into orders values (1, 'NaN')")
    delivery.settle()
    wait_until(lambda: not letters(delivery), 60, "the letter stays")
    wait_until(lambda: loop.status.counts.get("dead_letters_expired") == 1, 60, "it was not counted")


def test_a_replay_that_breaks_the_epoch_is_taken_out_of_it(delivery: Delivery, database: Database) -> None:
    loop = delivery.start()
    database.execute("insert into orders values (1, 'NaN'); insert into lines values (1, 'x', 1)")
    delivery.settle()
    delivery.stop()
    with contextlib.closing(duckdb.connect(str(delivery.options["path"]))) as connection:
        connection.execute("alter table public.orders rename to gone")
    delivery.options["on_unrepresentable"] = "null"
    loop = delivery.start()
    command(delivery, "replay")
    delivery.settle(with_replays=True)
    database.execute("insert into lines values (2, 'x', 1)")
    delivery.settle()
    assert [(x.state, x.code) for x in letters(delivery)] == [("open", "destination_failed")] and loop.status.state == "ok"
    delivery.stop()
    assert len(rows(delivery, "lines")) == 2


@pytest.mark.parametrize("later", ["wait", "follow"])
def test_a_log_has_each_change_once_in_the_order_of_its_key(database: Database, tmp_path: Path, later: Any) -> None:
    database.execute(SCHEMA)
    delivery = Delivery(database, tmp_path, "files", path=str(tmp_path / "log"))
    delivery.rules = DeadLetterRules(later=later)
    with delivery.captured.running():
        delivery.start()
        database.execute("insert into orders values (1, 'NaN'), (2, 2); update orders set n = 1 where id = 1")
        database.execute("update orders set n = 3 where id = 2")
        delivery.settle()
        delivery.stop()
        delivery.options["on_unrepresentable"] = "null"
        delivery.start()
        command(delivery, "replay")
        delivery.settle(with_replays=True)
        delivery.stop()
    log = [row for part in read_changes(tmp_path / "log", "public", "orders") for row in part.to_pylist()]
    assert len({(row["__position"], row["__ordinal"]) for row in log}) == len(log) == 4
    ones = [row["__op"] for row in log if row["id"] == 1]
    assert ones == (["insert", "update"] if later == "wait" else ["update", "insert"])


def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """One statement on few keys; now and then with a value that DuckDB cannot hold."""
    n, m = chance.randrange(8), chance.randrange(8)
    value = chance.choice(("'NaN'", "1", "2", "3", "null"))
    big = chance.choice(("null", "repeat('x', 3000)", "'small'"))
    kinds = {
        f"insert into orders values ({n}, {value}, {big}) on conflict do nothing": 30,
        f"update orders set n = {value} where id = {n}": 30,
        f"update orders set id = {m} where id = {n} and not exists (select from orders where id = {m})": 25,
        f"update orders set id = {m}, n = {value} where id = {n} and not exists (select from orders where id = {m})": 10,
        f"delete from orders where id = {n}": 15,
        "truncate orders": 1,
        f"insert into lines values ({n}, 'b{m % 2}', {value}) on conflict (a, b) do update set n = excluded.n": 20,
    }
    connection.execute(chance.choices(list(kinds), list(kinds.values()))[0].encode())


# What stands between handing out and gathering is Spark's, which is not here.
BOUNDARIES = [x for x in failpoints.NAMES if x.startswith(("engine.", "destination.")) and x != "engine.after_dispatch"]


def disturb(delivery: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random changes, some of them refused, replays, and a kill at every boundary."""
    sys.stderr.write(f"PENSTOCK_TEST_SEED={SEED}\n")
    deadly_failpoints(monkeypatch)
    chance = random.Random(SEED)
    refused = kills = 0
    for point in chance.sample(BOUNDARIES, len(BOUNDARIES)):
        delivery.was_killed = False
        failpoints.arm(f"{point}:{chance.choice((1, 1, 2))}")
        delivery.start()
        with psycopg.connect(database.dsn) as connection:
            for _ in range(8):
                for _ in range(chance.choice((1, 1, 2, 5))):
                    write(connection, chance)
                connection.commit()
                time.sleep(0.003)
        if chance.random() < 0.7:
            command(delivery, "replay")
        delivery.settle()
        kills += delivery.was_killed
        refused = max(refused, len(letters(delivery)))
        delivery.stop()
    failpoints.arm("")
    delivery.was_killed = False
    assert refused and kills >= 3


@pytest.mark.slow
def test_whatever_is_refused_replayed_and_killed_the_table_ends_as_the_source_s(
    delivery: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(delivery, database, monkeypatch)
    delivery.options["on_unrepresentable"] = "null"
    delivery.start()
    # What a killed epoch has set aside can be asked for when that epoch is closed.
    delivery.settle()
    command(delivery, "replay")
    delivery.settle(with_replays=True)
    assert letters(delivery) == []
    delivery.stop()
    for table in ("orders", "lines"):
        assert rows(delivery, table) == sorted(
            (tuple(None if str(v) == "NaN" else v for v in row) for row in database.rows(f"select * from {table}")), key=_order
        )


@pytest.mark.slow
def test_the_same_with_a_database_that_refuses_rows_when_it_commits(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(SCHEMA)
    delivery = Delivery(database, tmp_path, "postgres", dsn=subject.dsn(tmp_path))
    with delivery.captured.running():
        delivery.start()
        delivery.settle()
        delivery.stop()
        for table in ("orders", "lines"):
            subject.asked(tmp_path, f"alter table public.{table} add constraint known check (n <> 'NaN')")
        disturb(delivery, database, monkeypatch)
        for table in ("orders", "lines"):
            subject.asked(tmp_path, f"alter table public.{table} drop constraint known")
        delivery.start()
        delivery.settle()
        command(delivery, "replay")
        delivery.settle(with_replays=True)
        assert letters(delivery) == []
        delivery.stop()
    for table in ("orders", "lines"):
        texts = f"select t::text from public.{table} t order by 1"
        assert subject.asked(tmp_path, texts) == database.rows(texts)


def _order(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is None, value) for value in row]


def test_what_a_web_server_refuses_is_sent_again_in_the_order_of_its_key(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    refuses = [True]

    def answer(arrived: Arrived) -> bytes:
        bad = any(c["op"] == "truncate" or (c["after"] or {}).get("n") == "13.00" for c in arrived.changes)
        return reply(422 if bad and refuses[0] else 204)

    with Receiver(answer) as receiver:
        delivery = Delivery(database, tmp_path, "http", url=receiver.url, include=["orders"])
        with delivery.captured.running():
            delivery.start()
            database.execute("insert into orders values (1, 13), (2, 2); update orders set n = 1 where id = 1")
            delivery.settle()
            database.execute("update orders set id = 3 where id = 1; update orders set n = 3 where id = 2")
            delivery.settle()
            assert [(x.op, x.state, x.code) for x in letters(delivery)] == [
                ("insert", "open", "change_refused"),
                ("update", "waiting", "waiting"),
                ("update", "waiting", "waiting"),
            ]
            # A TRUNCATE that is refused makes its whole table wait, and what stood before it stays.
            database.execute("truncate orders")
            delivery.settle()
            database.execute("insert into orders values (9, 9)")
            delivery.settle()
            assert [x.op for x in letters(delivery)] == ["insert", "update", "update", "truncate", "insert"]
            refuses[0] = False
            command(delivery, "replay", ids=[letters(delivery)[-1].id])
            delivery.settle(with_replays=True)
            assert letters(delivery) == []
            delivery.stop()
    taken = [(c["op"], (c["key"] or {}).get("id")) for c in receiver.changes]
    assert taken[-5:] == [("insert", 1), ("update", 1), ("update", 3), ("truncate", None), ("insert", 9)]


def test_rows_that_a_database_refuses_are_set_aside_with_all_changes_of_their_keys(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    delivery = Delivery(database, tmp_path, "postgres", dsn=subject.dsn(tmp_path))
    with delivery.captured.running():
        delivery.start()
        database.execute("insert into orders values (1, 1), (2, 2), (3, 3)")
        delivery.settle()
        subject.asked(tmp_path, "alter table public.orders add constraint small check (n < 10)")
        with database.connect() as connection, connection.transaction():
            connection.execute("update orders set n = 5, big = repeat('x', 3000) where id = 1")
            connection.execute("update orders set id = 4, n = 20 where id = 1")
            connection.execute("update orders set n = 6 where id = 2; insert into orders values (5, 30), (6, 6)")
        delivery.settle()
        database.execute("update orders set n = 7 where id = 4; insert into orders values (7, 40)")
        delivery.settle()
        assert [(x.key, x.op, x.state) for x in letters(delivery)] == [
            ('{"id":4}', "update", "open"),
            ('{"id":5}', "insert", "open"),
            ('{"id":4}', "update", "waiting"),
            ('{"id":7}', "insert", "open"),
        ]
        assert "check" in letters(delivery)[0].reason and "small" in letters(delivery)[0].reason
        there = "select id, n::int, length(big) from public.orders order by 1"
        assert subject.asked(tmp_path, there) == [(1, 5, 3000), (2, 6, None), (3, 3, None), (6, 6, None)]
        subject.asked(tmp_path, "alter table public.orders drop constraint small; alter table public.orders add check (n < 35)")
        command(delivery, "replay")
        delivery.settle(with_replays=True)
        assert [(x.key, x.state, x.attempts) for x in letters(delivery)] == [('{"id":7}', "open", 2)]
        command(delivery, "discard")
        delivery.stop()
    assert subject.asked(tmp_path, there) == database.rows("select id, n::int, length(big) from orders where id <> 7 order by 1")
