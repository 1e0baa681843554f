"""Random histories on a real server: every table destination ends with the server's own table, however the log was cut."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.core.connectors import cards
from penstock.core.epoch import Epoch
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice, SliceFlag
from penstock.sources.postgres.decoder import PostgresDecoder
from tests.conformance.harness import Harness
from tests.conftest import Database
from tests.sources.postgres.captured import Captured

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
SECONDS = float(os.environ.get("PENSTOCK_PROPERTY_SECONDS", "6"))
TABLES = {"one": ("id",), "two": ("a", "b")}
SCHEMA = """
create table one (id int primary key, v int, big text, other text);
create table two (a int, b text, v int, big text, other text, primary key (a, b));
alter table one alter big set storage external, alter other set storage external;
alter table two alter big set storage external, alter other set storage external
"""


def write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """One statement on few keys, so that every key has a long history."""
    table, n, m = chance.choice(list(TABLES)), chance.randrange(8), chance.randrange(8)
    key, values = ("id", "%(n)s") if table == "one" else ("a, b", "%(n)s / 3, 'b' || %(n)s %% 3")
    where = f"({key}) = ({values})"
    big = chance.choice(("null", "repeat(%(t)s, 3000)", "%(t)s"))
    column = chance.choice(("v", "big", "other"))
    to = values.replace("%(n)s", "%(m)s")
    kinds: dict[str, int] = {
        f"insert into {table} ({key}, v, big, other) values ({values}, %(m)s, {big}, repeat('o', 2500))"
        " on conflict do nothing": 30,
        f"update {table} set {column} = {'%(m)s' if column == 'v' else big} where {where}": 30,
        f"update {table} set ({key}) = row({to}) where {where} and not exists (select from {table} where ({key}) = ({to}))": 45,
        f"update {table} set ({key}) = row({to}), v = v + 1 where {where}"
        f" and not exists (select from {table} where ({key}) = ({to}))": 8,
        f"delete from {table} where {where}": 15,
        f"truncate {table}": 1,
    }
    statement = chance.choices(list(kinds), list(kinds.values()))[0]
    connection.execute(statement.encode(), {"n": n, "m": m, "t": chance.choice("xyz") * 2})


def live(database: Database, chance: random.Random, transactions: int) -> None:
    with psycopg.connect(database.dsn) as connection:
        for _ in range(transactions):
            for _ in range(chance.choice((1, 1, 2, 5, 20))):
                write(connection, chance)
            connection.rollback() if chance.random() < 0.1 else connection.commit()
            # Capture notes what has come every few milliseconds: most transactions get a slice of their own.
            time.sleep(0.003)


def epochs(slices: Sequence[Slice], chance: random.Random) -> list[list[Slice]]:
    """The log cut at commits, anywhere; a new table version begins an epoch, as the planner has it."""
    often = chance.choice((0.02, 0.2, 0.9))
    cut: list[list[Slice]] = [[]]
    for s in slices:
        if cut[-1] and (s.flags & SliceFlag.SCHEMA or chance.random() < often):
            cut.append([])
        cut[-1].append(s)
    return cut


def deliver(harness: Harness, captured: Captured, cut: Sequence[Sequence[Slice]], chance: random.Random) -> list[int]:
    """Every epoch in any number of buckets; returns those numbers."""
    decoder, reader, after, used = PostgresDecoder(), SliceReader(captured.directory), 0, list[int]()
    with harness.around():
        for number, slices in enumerate(cut, 1):
            buckets = chance.choice((1, 1, 2, 3, 5))
            epoch = Epoch("flow", harness.card.name, "src1", number, after, slices[-1].last, buckets, 1)
            tables = {b.table.qualified: b.table for b in decoder.decode(reader, slices, 0, 1, lambda t: True)}
            harness.destination.prepare(list(tables.values()))
            receipts = []
            for bucket in range(buckets):
                writer = harness.writer()
                receipts.append(writer.write(epoch, bucket, decoder.decode(reader, slices, bucket, buckets, lambda t: True)))
                writer.close()
            harness.destination.commit(epoch, receipts)
            after = slices[-1].last
            used.append(buckets)
    reader.close()
    return used


@pytest.mark.slow
@pytest.mark.parametrize("name", [c.name for c in cards("destination").values() if c.capabilities["shape"] == "table"])
def test_any_cut_into_epochs_and_buckets_ends_with_the_servers_own_table(name: str, database: Database, tmp_path: Path) -> None:
    sys.stdout.write(f"PENSTOCK_TEST_SEED={SEED}\n")
    chance = random.Random(SEED)
    database.execute(SCHEMA)
    with Captured(database, tmp_path / "journal").running() as captured:
        live(database, chance, 150)
        captured.drain()
    slices, end, times = captured.slices(), time.monotonic() + SECONDS, 0
    schemas = {b.table.name: b.table for b in captured.batches()}
    while times < 3 or time.monotonic() < end:
        times += 1
        harness = Harness(name, tmp_path / f"h{times}")
        used = deliver(harness, captured, epochs(slices, chance), chance)
        with harness.around():
            for table, key in TABLES.items():
                expected = {row[: len(key)]: row for row in database.rows(f"select * from {table}")}
                found = {k: tuple(row.values()) for k, row in harness.state(schemas[table]).items()}
                assert found == expected, f"PENSTOCK_TEST_SEED={SEED}, cut {times}, buckets {used}, {table}"
    sys.stdout.write(f"{times} cuts of {len(slices)} slices\n")
