"""Rows of a backfill that changes have touched since: left out, completed, or read again, and only those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Handle, Op
from penstock.engine.touched import Touched, among
from tests.batches import Change, batch, table

TABLE = table({"id": pa.int64(), "v": pa.int64(), "big": pa.string()})
CHUNK = batch(TABLE, [Change(Op.SNAPSHOT, {"id": i, "v": 0, "big": "x" * 9}) for i in (1, 2, 3)])


def changes(*made: Change) -> Batch:
    found = batch(TABLE, made)
    return replace(found, handle=Handle((pc.cast(found.rows.column("id"), pa.string()),), {}))


def update(number: int, version: int) -> Change:
    return Change(Op.UPDATE, {"id": number, "v": version}, position=200 + version)


def move(old: int, new: int) -> tuple[Change, Change]:
    return Change(Op.LEAVE, old={"id": old}, position=300), Change(Op.ENTER, {"id": new, "v": 1}, {"id": old}, position=300)


def seen(*batches: Batch) -> tuple[Touched, list[dict[str, Any]]]:
    touched = Touched()
    for one in batches:
        touched.see(one)
    rows = [row for part in touched.brought_up(CHUNK, 400) for row in part.rows.to_pylist()]
    return touched, sorted(rows, key=lambda row: row["id"])


def asked(touched: Touched, *, left: bool = True) -> list[str]:
    found = touched.unresolved(lambda some: np.full(len(some), left))
    return [text for keys in found for text in keys.column("id").to_pylist()]


def test_a_change_that_leaves_out_a_column_is_folded_with_the_row_that_was_read() -> None:
    touched, rows = seen(changes(update(2, 1), update(2, 2)))
    assert [(r["id"], r["v"], r["big"]) for r in rows] == [(1, 0, "x" * 9), (2, 2, "x" * 9), (3, 0, "x" * 9)]
    assert asked(touched) == []


def test_rows_that_are_not_among_those_that_were_read_are_not_asked_for() -> None:
    touched, _ = seen(changes(update(2, 1), update(77, 2)), changes(update(78, 3)))
    assert asked(touched) == []


def test_a_row_that_left_its_key_is_asked_for_by_its_new_one() -> None:
    touched, rows = seen(changes(*move(2, 50), update(50, 4)), changes(update(77, 5)))
    assert [r["id"] for r in rows] == [1, 3]
    assert asked(touched) == ["50"]


def test_a_row_that_came_from_elsewhere_is_asked_for_only_where_it_may_be_missing() -> None:
    touched, _ = seen(changes(*move(30, 50)))
    assert asked(touched) == ["50"]
    assert asked(touched, left=False) == []


def test_a_key_that_was_left_is_told_among_the_rows_of_any_bucket() -> None:
    (_, entered), (_, other) = move(2, 50), move(30, 60)
    assert among(changes(entered, other), CHUNK).tolist() == [True, False]
