"""What a snapshot contains, by the server's own word, and across the end of the 32-bit ids."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from penstock.sources.postgres.load.reader import PostgresChunkReader
from penstock.sources.postgres.load.visibility import Described, contains
from tests.conftest import Database

FIRST_GIVEN = 3
"""The server gives no transaction an id whose lower 32 bits are below this; it refuses a snapshot that names 0 there."""


def is_given(xid: int) -> bool:
    return xid & 0xFFFFFFFF >= FIRST_GIVEN


def test_random_snapshots_contain_what_the_server_says(database: Database) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    r = random.Random(seed)
    with database.connect() as connection:
        for _ in range(40):
            upper = r.choice((1000, (1 << 32) + r.randint(-30, 30), (1 << 33) - 5, r.randrange(3000, 1 << 40)))
            upper += 0 if is_given(upper) else FIRST_GIVEN
            running = [x for x in range(upper - r.randint(0, 60), upper) if is_given(x) and r.random() < 0.3]
            lower = running[0] if running else upper
            text = f"{lower}:{upper}:{','.join(map(str, running))}"
            near = [x for x in (upper + r.randint(-90, 90) for _ in range(60)) if is_given(x)]
            far = [x for x in (upper - r.randrange(1 << 31), upper + r.randrange((1 << 31) - 1)) if x > 0 and is_given(x)]
            wide = near + far
            query = (
                "select pg_visible_in_snapshot(x::text::xid8, %s::pg_snapshot) from unnest(%s::text[]) with ordinality u (x, n)"
            )
            asked = connection.execute(f"{query} order by n".encode(), (text, [str(x) for x in wide])).fetchall()
            narrow = np.array([x & 0xFFFFFFFF for x in wide], np.int64)
            assert contains(text, narrow).tolist() == [row[0] for row in asked], (seed, text)
            assert str(Described.parse(text)) == text


@pytest.mark.parametrize(
    ("xid", "seen"),
    [(0, False), (5, True), ((1 << 32) - 3, True), (9, False), (10, False), (7, False)],
)
def test_ids_on_both_sides_of_the_wrap_are_told_apart(xid: int, seen: bool) -> None:
    described = f"{(1 << 32) - 2}:{(1 << 32) + 9}:{(1 << 32) - 2},{(1 << 32) + 7}"
    assert PostgresChunkReader({}).contains(described, np.array([xid])).to_pylist() == [seen]


def test_running_transactions_are_not_in_a_held_snapshot_and_ended_ones_are(database: Database) -> None:
    database.execute("create table t (id int)")
    with database.connect() as open_one, database.connect() as other:
        open_one.execute("begin; insert into t values (1)")
        (running,) = open_one.execute("select pg_current_xact_id()::text::bigint").fetchone() or (0,)
        (ended,) = other.execute("insert into t values (2) returning xmin::text::bigint").fetchone() or (0,)
        ((text,),) = other.execute("select pg_current_snapshot()::text").fetchall()
        (later,) = other.execute("insert into t values (3) returning xmin::text::bigint").fetchone() or (0,)
    assert contains(text, np.array([running, ended, later])).tolist() == [False, True, False]
