"""A packed batch comes back whole, whatever its types and whatever the log knew of its rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batch import Batch, Odd
from penstock.core.packing import pack, unpack
from tests.batches import Change, batch, delete, insert, move, table, truncate, update
from tests.formats.values import EVERY, HARD, STRATEGIES, assert_identical


def assert_same(left: Batch, right: Batch) -> None:
    assert left.table == right.table
    assert left.table.arrow.equals(right.table.arrow, check_metadata=True)
    for name in ("op", "position", "ordinal", "xid", "committed_at", "image"):
        assert getattr(left, name).equals(getattr(right, name)), name
    for rows, others in ((left.rows, right.rows), (left.before, right.before)):
        assert (rows is None) == (others is None)
        if rows is not None and others is not None:
            assert rows.num_rows == others.num_rows
            for column, a, b in zip(left.table.columns, rows.columns, others.columns, strict=True):
                assert_identical(a, b, column.name)
    assert _lists(left.unchanged) == _lists(right.unchanged)
    assert _lists(left.read_later) == _lists(right.read_later)
    for odd, others in ((left.odd, right.odd), (left.before_odd, right.before_odd)):
        assert {k: (o.rows.to_pylist(), o.texts.to_pylist()) for k, o in odd.items() if len(o.rows)} == {
            k: (o.rows.to_pylist(), o.texts.to_pylist()) for k, o in others.items()
        }


def _lists(masks: Any) -> list[Any]:
    return [None if mask is None else mask.to_pylist() for mask in masks]


def rows_of(values: dict[str, Any], number: int) -> dict[str, Any]:
    return {"id": number, **values}


@pytest.mark.parametrize("name", HARD)
def test_hard_values_of_every_type_come_back(name: str) -> None:
    changes: list[Change] = [insert(rows_of(dict.fromkeys(HARD), 0))]
    changes += [insert(rows_of(dict.fromkeys(HARD) | {name: value}, i), ordinal=i) for i, value in enumerate(HARD[name], 1)]
    made = batch(EVERY, changes)
    assert_same(made, unpack(pack(made)))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_batch_comes_back(data: st.DataObject) -> None:
    rows = st.fixed_dictionaries({name: st.none() | values for name, values in STRATEGIES.items()})
    changes: list[Change] = []
    for number in range(1, data.draw(st.integers(1, 4)) + 1):
        row = rows_of(data.draw(rows), number)
        partial = {k: v for k, v in row.items() if k == "id" or data.draw(st.booleans())}
        kind = data.draw(st.sampled_from(["insert", "update", "full", "delete", "move", "truncate"]))
        at: dict[str, Any] = {"position": 100 + number, "ordinal": number}
        changes += {
            "insert": [insert(row, **at)],
            "update": [update(partial, **at)],
            "full": [update(row, rows_of(data.draw(rows), number), **at)],
            "delete": [delete({"id": number}, **at)],
            "move": move({"id": number}, {**partial, "id": 50 + number}, **at),
            "truncate": [truncate(**at)],
        }[kind]
    made = batch(EVERY, changes)
    strange = Odd(pa.array([len(made) - 1], pa.int64()), pa.array(["infinity"]))
    marks = tuple(pa.array([True] + [False] * (len(made) - 1)) if c.name == "text" else None for c in EVERY.columns)
    made = replace(
        made, odd={"date": strange}, before_odd={"money": strange} if made.before is not None else {}, read_later=marks
    )
    assert_same(made, unpack(pack(made)))
    start = data.draw(st.integers(0, len(made) - 1))
    part = made.slice(start, data.draw(st.integers(1, len(made) - start)))
    assert_same(part, unpack(pack(part)))
    assert len(pack(made.slice(0, 1))) < len(pack(made)) or len(made) == 1


def test_a_table_without_columns_keeps_its_rows() -> None:
    bare = table({}, key=(), name="bare")
    made = batch(bare, [truncate()])
    made = replace(made, rows=pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([]))))
    assert len(unpack(pack(made))) == 1
