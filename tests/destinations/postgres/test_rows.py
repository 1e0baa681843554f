"""Rows in PostgreSQL equal the plain model, however the log is cut into epochs, chunks and buckets, and however they travel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.destinations.base import Place
from penstock.destinations.folding.fold import Fold
from penstock.destinations.postgres.destination import PostgresDestination
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.writer import PostgresWriter
from tests.batches import Change, batch, delete, insert, move, table, update
from tests.conformance.harness import Harness, work
from tests.destinations.postgres.subject import asked, dsn
from tests.table_model import ONE, TWO, State, key_of, logs, replay, shared_out, start

_FLOWS = itertools.count()


class Flow:
    """A destination and its writer, driven as the engine drives them, in a schema of its own."""

    def __init__(self, database: str, home: Path) -> None:
        self.name = f"f{next(_FLOWS)}"
        self.dsn = database
        place, chosen = Place(self.name, "pg", home / "staging"), PostgresOptions(dsn=database, schema_template=self.name)
        self.destination, self.writer = PostgresDestination(place, chosen), PostgresWriter(place, chosen)
        self.upto = 0

    def epoch(self, schema: TableSchema, buckets: Sequence[Sequence[Change]], cuts: Sequence[int] = ()) -> None:
        """One epoch of those changes."""
        epoch = Epoch(self.name, "pg", "src", self.upto + 1, self.upto, self.upto + 1, len(buckets), 1)
        self.upto += 1
        self.destination.prepare([schema])
        receipts = []
        for bucket, changes in enumerate(buckets):
            edges = sorted({0, len(changes), *(min(cut, len(changes)) for cut in cuts)})
            batches = [batch(schema, changes[begin:end]) for begin, end in pairwise(edges)]
            receipts.append(self.writer.write(epoch, bucket, iter(batches)))
        self.destination.commit(epoch, receipts)

    def rows(self, schema: TableSchema) -> State:
        """What the table holds."""
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            found = connection.execute(SQL("SELECT * FROM {}").format(Identifier(self.name, schema.name))).fetchall()
        state = {key_of(schema, row): row for row in found}
        assert len(state) == len(found), "a key is there twice"
        return state


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_log_in_any_cut_gives_the_model_s_rows(data: st.DataObject, tmp_path: Path, way: str) -> None:
    schema = data.draw(st.sampled_from([ONE, TWO]))
    changes = data.draw(logs(schema))
    cuts = data.draw(st.lists(st.integers(1, 40), max_size=4))
    buckets = data.draw(st.integers(1, 3))
    most = data.draw(st.sampled_from([1, 60, 1 << 30]))
    flow = Flow(dsn(tmp_path), tmp_path)
    try:
        with patch("penstock.destinations.folding.writer.Fold", lambda **more: Fold(most, **more)):
            flow.epoch(schema, [[insert(row) for row in start(schema).values()]])
            flow.epoch(schema, shared_out(schema, changes, buckets), cuts)
        assert flow.rows(schema) == replay(schema, changes, start(schema))
    finally:
        flow.destination.close()


@pytest.mark.parametrize("order", [1, -1], ids=["the old key ends first", "the new key ends first"])
def test_a_key_that_changes_its_text_and_not_its_value_stays(target: Harness, order: int) -> None:
    """1.0 becomes 1.00: one key for PostgreSQL, two for whoever shares changes out by their bytes."""
    schema = table({"k": (pa.string(), "numeric"), "v": pa.int32(), "big": pa.string()}, key=("k",))
    target.deliver(1, work(schema, [insert({"k": "1.0", "v": 1, "big": "x"}), insert({"k": "7", "v": 7, "big": "y"}, ordinal=2)]))
    leave, enter = move({"k": "1.0"}, {"k": "1.00", "v": 2}, position=1001)
    later = update({"k": "7", "v": 8, "big": "z"}, position=1002)
    target.deliver(2, [(schema, [[leave], [enter, later]] if order > 0 else [[enter], [leave, later]])])
    assert asked(target.home, "SELECT k::text, v, big FROM public.orders ORDER BY v") == [("1.00", 2, "x"), ("7", 8, "z")]


def test_big_unchanged_values_are_not_written_again(target: Harness, way: str) -> None:
    schema = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string(), "other": pa.string()})
    big = "".join(chr(33 + n * 7919 % 90) for n in range(200_000))
    target.deliver(1, work(schema, [insert({"id": 1, "v": 1, "big": big, "other": "a"})]))
    pages = (
        "SELECT pg_relation_size(reltoastrelid), pg_column_size(o.big) FROM pg_class, public.orders o WHERE relname = 'orders'"
    )
    before = asked(target.home, pages)
    for number in range(2, 5):
        at: Any = {"position": number * 1000 - 500}
        target.deliver(
            number, work(schema, [update({"id": 1, "v": number}, **at), update({"id": 2, "v": 1, "other": "b"}, **at, ordinal=2)])
        )
    assert asked(target.home, pages)[0] == before[0]
    assert asked(target.home, "SELECT id, v, length(big), other FROM public.orders ORDER BY id") == [
        (1, 4, 200_000, "a"),
        (2, 1, None, "b"),
    ]


def test_columns_and_rows_of_others_stay_when_a_row_changes(target: Harness) -> None:
    target.deliver(1, work(ONE, [insert({"id": 1, "v": 1, "big": "a", "large": "b"}), insert({"id": 2, "v": 1}, ordinal=2)]))
    asked(
        target.home,
        "ALTER TABLE public.orders ADD COLUMN note text DEFAULT 'mine';"
        "CREATE TABLE public.refers (id bigint REFERENCES public.orders ON DELETE CASCADE);"
        "INSERT INTO public.refers VALUES (1), (2)",
    )
    changes = [update({"id": 1, "v": 2, "big": "a", "large": "b"}, position=1001), delete({"id": 2}, position=1001, ordinal=2)]
    target.deliver(2, work(ONE, changes))
    assert asked(target.home, "SELECT id, v, note FROM public.orders") == [(1, 2, "mine")]
    assert asked(target.home, "SELECT id FROM public.refers") == [(1,)]


def test_many_rows_take_the_way_of_many(target: Harness) -> None:
    rows: list[Any] = [insert({"id": n, "v": n, "big": "x" * 300, "large": None}, ordinal=n) for n in range(1, 3000)]
    (receipt,) = target.deliver(1, work(ONE, rows))
    assert "file" in receipt
    changes = [
        delete({"id": n}, position=1001, ordinal=n) if n % 2 else update({"id": n, "v": -n}, position=1001, ordinal=n)
        for n in range(1, 3000)
    ]
    target.deliver(2, work(ONE, changes))
    assert asked(target.home, "SELECT count(*), sum(v), max(length(big)) FROM public.orders") == [
        (1499, -sum(range(2, 3000, 2)), 300)
    ]
    assert list((target.home / "staging").iterdir()) == []


def test_new_rows_are_poured_and_merged_when_one_of_them_is_there_after_all(target: Harness) -> None:
    rows = [insert({"id": n, "v": n, "big": "x" * 500, "large": None}, ordinal=n) for n in range(1, 2000)]
    target.deliver(1, work(ONE, rows[:1000]))
    asked(
        target.home,
        "CREATE TABLE public.seen (what text);"
        "CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ begin insert into public.seen values (split_part(current_query(), ' ', 1)); return null; end $$;"
        "CREATE TRIGGER see AFTER INSERT ON public.orders EXECUTE FUNCTION public.see();"
        "INSERT INTO public.orders VALUES (1900, -1, 'mine', 'mine'); TRUNCATE public.seen",
    )
    (receipt,) = target.deliver(2, work(ONE, rows[1000:1800]))
    assert "inserts" in receipt["chunks"][0] and "upserts" not in receipt["chunks"][0]
    target.deliver(3, work(ONE, rows[1000:]))
    assert asked(target.home, "SELECT what FROM public.seen") == [("COPY",), ("WITH",)]
    assert asked(target.home, "SELECT count(*), sum(v), count(large) FROM public.orders") == [(1999, sum(range(2000)), 0)]
