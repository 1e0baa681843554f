"""Rows that the server refuses at the commit are found among many, named by a change, and nothing is changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.destinations.base import Held, Receipt
from penstock.errors import ChangesRefused, ValueRefused
from tests.batches import Change, batch, delete, insert, move, table, update
from tests.conformance.harness import Harness, work
from tests.destinations.postgres.subject import asked
from tests.table_model import numbered

ONE = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string()})
ROW = {"v": 1, "big": "b"}


def receipts(target: Harness, changes: Sequence[Change], number: int = 2) -> list[Receipt]:
    writer = target.writer()
    writer.sets_aside = True
    target.destination.sets_aside = True
    return [writer.write(target.epoch(number), 0, iter([batch(ONE, changes)]))]


def refused(target: Harness, changes: Sequence[Change]) -> list[tuple[Any, ...]]:
    """What the commit of the changes refuses; nothing of them is there afterwards."""
    before = target.state(ONE)
    made = receipts(target, changes)
    with pytest.raises(ChangesRefused) as raised:
        target.destination.commit(target.epoch(2), made)
    assert target.state(ONE) == before and target.destination.committed() == Held(1000, 1)
    assert all(r["code"] == "value_refused" and r["schema"] == "public" for r in raised.value.refusals)
    return [(r["position"], r["ordinal"]) for r in raised.value.refusals]


@pytest.fixture
def started(target: Harness, way: str) -> Harness:
    rows = [insert({"id": n, **ROW}, position=10, ordinal=n) for n in range(1, 6)]
    target.deliver(1, work(ONE, rows))
    return target


def test_bad_rows_are_found_among_many_of_every_kind(started: Harness) -> None:
    asked(started.home, "ALTER TABLE public.orders ADD CONSTRAINT small CHECK (v < 100 AND id <> 60)")
    asked(started.home, "CREATE TABLE public.refers (id bigint REFERENCES public.orders); INSERT INTO public.refers VALUES (5)")
    many = [insert({"id": 1000 + n, **ROW, "v": 100 if n in (3, 77, 150) else n % 7}) for n in range(200)]
    changes = numbered(
        [
            *many,
            update({"id": 1, "v": 2}),
            update({"id": 2, "v": 500}),
            delete({"id": 4}),
            delete({"id": 5}),
            move({"id": 3}, {"id": 60, "v": 3}),
        ]
    )
    by_key = {c.row.get("id", (c.old or {}).get("id")): (c.position, c.ordinal) for c in changes}
    assert sorted(refused(started, changes)) == sorted(by_key[key] for key in (1003, 1077, 1150, 2, 5, 60))


def test_bad_rows_among_new_ones_that_are_poured_are_found(started: Harness) -> None:
    asked(started.home, "ALTER TABLE public.orders ADD CONSTRAINT small CHECK (v < 100)")
    changes = numbered([insert({"id": 100 + n, "v": 100 if n == 700 else 1, "big": "x" * 500}) for n in range(1000)])
    changes += numbered([update({"id": 1, "v": 500, "big": "y"})])
    changes[-1] = dataclasses.replace(changes[-1], position=999)
    assert refused(started, changes) == [(999, 1), (changes[700].position, changes[700].ordinal)]


def test_a_constraint_that_waits_for_the_commit_names_its_rows_too(started: Harness) -> None:
    asked(started.home, "DELETE FROM public.orders WHERE id > 1")
    asked(started.home, "ALTER TABLE public.orders ADD CONSTRAINT once UNIQUE (v) DEFERRABLE INITIALLY DEFERRED")
    changes = numbered([insert({"id": n, "v": v, "big": ""}) for n, v in ((7, 7), (8, 1), (9, 9))])
    assert refused(started, changes) == [(100, 2)]


def test_without_leave_to_set_aside_the_refusal_stands(started: Harness) -> None:
    asked(started.home, "ALTER TABLE public.orders ADD CONSTRAINT small CHECK (v < 100)")
    made = receipts(started, numbered([insert({"id": 9, **ROW, "v": 100})]))
    started.destination.sets_aside = False
    with pytest.raises(ValueRefused):
        started.destination.commit(started.epoch(2), made)


def test_finding_one_bad_row_takes_a_logarithm_of_statements(started: Harness) -> None:
    asked(started.home, "ALTER TABLE public.orders ADD CONSTRAINT small CHECK (v < 100)")
    asked(started.home, "CREATE SEQUENCE public.tries; GRANT ALL ON SEQUENCE public.tries TO PUBLIC")
    asked(
        started.home,
        "CREATE FUNCTION public.tell() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ begin perform nextval('public.tries'); return null; end $$;"
        "CREATE TRIGGER tell BEFORE INSERT ON public.orders FOR EACH STATEMENT EXECUTE FUNCTION public.tell()",
    )
    count = 4096
    changes = numbered([insert({"id": 1000 + n, **ROW, "v": 100 if n == 1234 else 1}) for n in range(count)])
    assert len(refused(started, changes)) == 1
    tries = int(asked(started.home, "SELECT last_value FROM public.tries")[0][0])
    assert tries <= 3 * 12 + 4, "a statement for every row, or for every few"
