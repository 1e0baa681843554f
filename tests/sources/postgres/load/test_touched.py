"""What a stretch of the journal touches, over histories by chance, and rows that two snapshots disagree about."""

from __future__ import annotations

import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.core.batch import Op
from penstock.journal.reader import SliceReader
from penstock.sources.chunks import Touched
from penstock.sources.postgres import assembly
from penstock.sources.postgres.load.reader import PostgresChunkReader
from tests.conftest import Database
from tests.sources.postgres.captured import Captured
from tests.sources.postgres.load.loads import loading

READER = PostgresChunkReader({})
Connection = psycopg.Connection[tuple[Any, ...]]


def touched(captured: Captured, table: str, outside: str, inside: str | None = None) -> list[Touched]:
    journal = SliceReader(captured.directory)
    found = list(READER.touched(journal, captured.slices(), "public", table, outside=outside, inside=inside))
    journal.close()
    return found


def keys(found: list[Touched]) -> set[tuple[str, ...]]:
    return {tuple(row.values()) for t in found for row in t.keys.to_pylist()}


def snapshot(connection: Connection) -> str:
    ((text,),) = connection.execute("select pg_current_snapshot()::text").fetchall()
    return str(text)


def change(r: random.Random, connection: Connection) -> None:
    a, b = r.randrange(40), r.choice(("x", "it's", 'a"b', "tab\t"))
    kind = r.randrange(6)
    if kind < 2:
        connection.execute("insert into t values (%s, %s, 0) on conflict (b, a) do update set v = t.v + 1", (a, b))
    elif kind == 2:
        connection.execute("delete from t where a = %s and b = %s", (a, b))
    elif kind == 3:
        connection.execute("update t set v = v + 1 where a < %s", (a // 4,))
    else:
        connection.execute("update t set a = a + 100 where a = %s and not exists (select from t o where o.a = %s)", (a, a + 100))


def test_touched_keys_are_those_of_transactions_between_two_snapshots(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    r = random.Random(seed)
    database.execute("create table t (a int, b text, v int, primary key (b, a)); create table u (id int primary key)")
    database.execute("insert into t select g, 'x', 0 from generate_series(1, 30) g")
    monkeypatch.setattr(assembly, "SLICE_BYTES", 2000, raising=False)
    snapshots = []
    with Captured(database, tmp_path).running() as captured, database.connect() as eye:
        sessions = [database.connect() for _ in range(4)]
        for i, session in enumerate(sessions):
            session.execute("set lock_timeout = '100ms'")
            session.execute("begin")
            session.execute("insert into u values (%s)", (-i - 1,))
        for step in range(120):
            session = r.choice(sessions)
            try:
                change(r, session)
            except psycopg.errors.LockNotAvailable:
                session.execute("rollback")
                session.execute("begin")
            if r.random() < 0.4:
                session.execute(r.choice(("commit", "commit", "rollback")))
                session.execute("begin")
            if step % 20 == 10:
                snapshots.append((snapshot(eye), set(eye.execute("select b, a::text from t where v >= 0").fetchall())))
        for session in sessions:
            session.execute("commit")
            session.close()
        captured.drain()
    decoded = [b for b in captured.batches() if b.table.name == "t"]
    for i, (outside, _) in enumerate(snapshots):
        for inside in (None, *[s for s, _ in snapshots[i:]]):
            expected = set()
            for batch in decoded:
                seen = READER.contains(outside, batch.xid).to_pylist()
                late = [True] * len(batch) if inside is None else READER.contains(inside, batch.xid).to_pylist()
                for row, early, wanted in zip(batch.rows.to_pylist(), seen, late, strict=True):
                    if not early and wanted:
                        expected.add(tuple(str(row[name]) for name in batch.table.key))
            assert keys(touched(captured, "t", outside, inside)) == expected, (seed, outside, inside)
    # Outside of what is said to be touched, two snapshots hold the same keys.
    for (outside, before), (inside, after) in pairwise(snapshots):
        between = keys(touched(captured, "t", outside, inside))
        order = decoded[0].table.key
        places = [("b", "a").index(name) for name in order]
        assert {tuple(k[p] for p in places) for k in before ^ after} <= between, seed


def test_old_and_new_keys_truncates_and_tables_without_a_key_are_said(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v text); create table n (v text); alter table n replica identity full")
    database.execute("insert into t values (1, 'a'), (2, 'b')")
    with Captured(database, tmp_path).running() as captured, database.connect() as eye:
        outside = snapshot(eye)
        database.execute("update t set id = 10 where id = 1")
        inside = snapshot(eye)
        database.execute("truncate t; insert into n values ('x'), ('y')")
        captured.drain()
    between = touched(captured, "t", outside, inside)
    assert keys(between) == {("1",), ("10",)} and not any(t.truncated for t in between)
    (after,) = touched(captured, "t", inside)
    assert after.truncated and after.keys.num_rows == 0 and after.changes == 1
    (keyless,) = touched(captured, "n", outside)
    assert keyless.changes == 2 and keyless.keys.num_columns == 0
    assert touched(captured, "t", snapshot_of_all(captured)) == []


def snapshot_of_all(captured: Captured) -> str:
    last = max(x for b in captured.batches() for x in b.xid.to_pylist())
    return f"{last + 1}:{last + 1}:"


def test_rows_read_in_one_snapshot_and_corrected_by_key_in_another_are_the_others_state(
    database: Database, tmp_path: Path
) -> None:
    database.execute("create table t (a int, b text, v int, primary key (b, a))")
    database.execute("insert into t select g, 'x', 0 from generate_series(1, 60) g")
    (tmp_path / "chunks").mkdir()
    r = random.Random(5)
    with Captured(database, tmp_path / "journal").running() as captured, loading(database, tmp_path / "chunks") as load:
        first = load.source.hold_snapshot()
        (chunk,) = load.plan()
        with database.connect() as connection, database.connect() as open_one:
            open_one.execute("begin; insert into t values (77, 'open', 0)")
            for _ in range(60):
                change(r, connection)
            second = load.source.hold_snapshot()
            expected = {(b, a): v for a, b, v in connection.execute("select a, b, v from t").fetchall()}
            for _ in range(20):
                change(r, connection)
            open_one.execute("commit")
        captured.drain()
        state = {(row["b"], row["a"]): row["v"] for row in load.rows(chunk, first.name)}
        found = touched(captured, "t", first.described, second.described)
        for part in found:
            for one in load.source.key_chunks(part.table, part.keys):
                path, _ = load.read(one, second.name, table=part.table)
                for batch in load.decode(path, part.table):
                    for row, op in zip(batch.rows.to_pylist(), batch.op.to_pylist(), strict=True):
                        if op == Op.DELETE:
                            state.pop((row["b"], row["a"]), None)
                        else:
                            state[row["b"], row["a"]] = row["v"]
        assert state == expected
        first.close()
        second.close()


def test_the_first_commit_that_a_snapshot_lacks_is_found_small_big_and_streamed(database: Database, tmp_path: Path) -> None:
    database.execute("create table t (id int primary key, v text)")
    database.execute(f"alter database {database.name} set logical_decoding_work_mem = '64kB'")
    xids: list[int] = []
    with Captured(database, tmp_path).running() as captured, database.connect() as connection:
        for statement in (
            "insert into t values (1, 'a')",
            "insert into t select g, repeat('x', 400) from generate_series(10, 30000) g",
            "insert into t values (2, 'b')",
        ):
            connection.execute("begin")
            connection.execute(statement.encode())
            xids += connection.execute("select pg_current_xact_id()::text::bigint & 4294967295").fetchall()[0]
            connection.execute("commit")
        captured.drain()
    journal = SliceReader(captured.directory)
    slices = captured.slices()
    positions = {x: p for b in captured.batches() for x, p in zip(b.xid.to_pylist(), b.position.to_pylist(), strict=True)}
    last = max(xids) + 1
    for lacks in ([xids[0]], [xids[1]], [xids[2]], xids[1:], xids):
        running = ",".join(map(str, lacks))
        assert READER.first_outside(journal, slices, f"{xids[0]}:{last}:{running}") == positions[lacks[0]]
        # One that is newer than every transaction that has ended is not named, and is lacking all the same.
        assert READER.first_outside(journal, slices, f"{lacks[0]}:{lacks[0]}:") == positions[lacks[0]]
    assert READER.first_outside(journal, slices, f"{last}:{last}:") is None
    assert READER.first_outside(journal, [], f"{xids[0]}:{last}:") is None
    journal.close()
