"""The fold equals a plain model of a table, however the log is cut into batches, chunks and buckets."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batch import Batch, Op
from penstock.core.schema import TableSchema
from penstock.destinations.folding.fold import Fold, Folded, Patches, fold
from penstock.destinations.folding.order import in_order
from penstock.errors import DecodeFailed
from tests.batches import Change, batch, delete, insert, move, table, truncate, update
from tests.table_model import ONE, TWO, State, key_of, logs, numbered, replay, shared_out, start


def complete(schema: TableSchema, patches: Patches, state: State, departed: dict[Any, Any]) -> list[dict[str, Any] | None]:
    """Patches with their unknown cells taken from the origin; None for one whose departure is not there yet."""
    done: list[dict[str, Any] | None] = []
    columns = [c.name for c in schema.columns]
    for i, row in enumerate(patches.rows.to_pylist()):
        at = tuple(patches.departure.slice(i, 1).to_pylist()[0].values())
        if at[0] is not None and at not in departed:
            done.append(None)
            continue
        origin = departed[at] if at[0] is not None else state.get(tuple(patches.origin.slice(i, 1).to_pylist()[0].values()), {})
        for name, marks in zip(columns, patches.unchanged, strict=True):
            if marks is not None and marks[i].as_py():
                row[name] = origin.get(name)
        done.append(row)
    return done


def apply(buckets: Sequence[Sequence[Folded]], state: State) -> State:
    """Chunks applied as their documentation says, in plain Python."""
    state = dict(state)
    departed: dict[Any, Any] = {}
    left = []
    for chunks in buckets:
        truncations = [i for i, chunk in enumerate(chunks) if chunk.truncated]
        if truncations:
            state.clear()
        left.append(list(chunks[truncations[-1] if truncations else 0 :]))
    for chunk, heads in in_order(left):
        schema = chunk.table
        grown = True
        while grown:
            grown = False
            for head in heads:
                if head.departures is not None:
                    ready = complete(head.table, head.departures.patches, state, departed)
                    for at, row in zip(head.departures.at.to_pylist(), ready, strict=True):
                        if row is not None and tuple(at.values()) not in departed:
                            departed[tuple(at.values())] = row
                            grown = True
        patched = complete(schema, chunk.patches, state, departed) if chunk.patches else []
        assert None not in patched
        for key in chunk.deletes.to_pylist():
            state.pop(tuple(key.values()), None)
        for row in [*chunk.upserts.to_pylist(), *patched]:
            state[key_of(schema, row)] = row
    return state


def folded(schema: TableSchema, rows: Sequence[Sequence[Change]], cuts: Sequence[int], most: int = 1 << 30) -> list[list[Folded]]:
    """The rows of each bucket, cut into batches at `cuts`, folded into chunks of at most `most` bytes."""
    buckets = []
    for changes in rows:
        worker, chunks = Fold(most), []
        edges = sorted({0, len(changes), *(min(cut, len(changes)) for cut in cuts)})
        for begin, end in pairwise(edges):
            chunks += list(worker.add(batch(schema, changes[begin:end])))
        chunks += list(worker.end())
        buckets.append(chunks)
    return buckets


def check(
    schema: TableSchema, changes: Sequence[Change], state: State, buckets: int = 1, cuts: Sequence[int] = (), most: int = 1 << 30
) -> None:
    """The fold of the changes applied to a state gives what the model gives."""
    shared = shared_out(schema, changes, buckets)
    assert apply(folded(schema, shared, cuts, most), state) == replay(schema, changes, state)


START: State = {(k,): {"id": k, "v": k, "big": f"big{k}", "large": f"large{k}"} for k in range(1, 5)}


CASES: dict[str, list[Any]] = {
    "insert": [insert({"id": 9, "v": 1, "big": "x", "large": "y"})],
    "unchanged columns keep what is there": [update({"id": 1, "v": 7})],
    "last known value": [update({"id": 1, "v": 7, "big": "n"}), update({"id": 1, "v": 8, "large": None})],
    "delete and insert again": [delete({"id": 1}), insert({"id": 1, "v": 0, "big": None, "large": "z"})],
    "update of nothing": [delete({"id": 1}), update({"id": 1, "v": 5})],
    "key change": [move({"id": 1}, {"id": 8, "v": 1})],
    "chain of key changes": [move({"id": a}, {"id": b, "v": b}) for a, b in ((1, 8), (8, 9), (9, 10))],
    "change, then key change": [update({"id": 1, "v": 1, "big": "new"}), move({"id": 1}, {"id": 8, "v": 1})],
    "old key again": [move({"id": 1}, {"id": 8, "v": 1}), insert({"id": 1, "v": 1, "big": "o", "large": "p"})],
    "swap": [move({"id": a}, {"id": b, "v": 1}) for a, b in ((1, 99), (2, 1), (99, 2))],
    "key change, then delete": [move({"id": 1}, {"id": 8, "v": 1}), delete({"id": 8})],
    "onto a deleted key": [delete({"id": 2}), move({"id": 1}, {"id": 2, "v": 1}), update({"id": 2, "v": 3, "big": "b"})],
    "truncate": [update({"id": 1, "v": 0}), truncate(), insert({"id": 2, "v": 2, "big": "", "large": None})],
    "truncate last": [truncate(), insert({"id": 1, "v": 2, "big": "", "large": None}), truncate()],
    "move of nothing": [insert({"id": 7, "v": 2, "big": "q", "large": ""}), truncate(), move({"id": 7}, {"id": 8, "v": 1})],
}


@pytest.mark.parametrize("buckets", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 1 << 30])
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_folded_changes_give_the_model_s_rows(changes: list[Any], buckets: int, most: int) -> None:
    check(ONE, numbered(changes), START, buckets, range(1, 10), most)


@pytest.mark.slow
@pytest.mark.parametrize("schema", [ONE, TWO], ids=["one key column", "two key columns"])
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_log_in_any_cut_gives_the_model_s_rows(schema: TableSchema, data: st.DataObject) -> None:
    changes = data.draw(logs(schema))
    cuts = data.draw(st.lists(st.integers(1, 40), max_size=5))
    check(schema, changes, start(schema), data.draw(st.integers(1, 4)), cuts, data.draw(st.sampled_from([1, 60, 1 << 30])))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.int16(), [1, -2]),
        (pa.float64(), [1.5, float("inf")]),
        (pa.string(), ["a", ""]),
        (pa.large_string(), ["a", ""]),
        (pa.binary(), [b"\x00", b""]),
        (pa.decimal128(12, 2), [Decimal("1.10"), Decimal("-2")]),
        (pa.decimal256(60, 2), [Decimal("1.10"), Decimal("-2")]),
        (pa.date32(), [0, 1]),
        (pa.time64("us"), [0, 1]),
        (pa.timestamp("us", "UTC"), [0, 1]),
        (pa.uint32(), [0, 2**32 - 1]),
    ],
    ids=str,
)
def test_keys_may_have_any_scalar_type(kind: pa.DataType, values: list[Any]) -> None:
    schema = table({"id": kind, "v": pa.int32()})
    first, second = pa.array(values, kind).to_pylist()
    changes = numbered([insert({"id": first, "v": 1}), insert({"id": second, "v": 2}), update({"id": first, "v": 3})])
    chunk = fold([batch(schema, changes)])
    assert chunk.upserts.to_pylist() == [{"id": second, "v": 2}, {"id": first, "v": 3}]


def test_zero_and_minus_zero_are_one_key() -> None:
    schema = table({"id": pa.float64(), "v": pa.int32()})
    chunk = fold([batch(schema, numbered([insert({"id": 0.0, "v": 1}), update({"id": -0.0, "v": 2})]))])
    assert [row["v"] for row in chunk.upserts.to_pylist()] == [2]


def test_null_in_a_key_is_refused() -> None:
    with pytest.raises(DecodeFailed):
        fold([batch(ONE, numbered([insert({"id": None, "v": 1, "big": "", "large": ""})]))])


def test_a_chunk_never_holds_more_than_it_may() -> None:
    rows = [[insert({"id": n, "v": n, "big": "x" * 1000, "large": ""})] for n in range(100)]
    worker = Fold(10_000)
    sizes = [chunk.upserts.num_rows for part in rows for chunk in worker.add(batch(ONE, part))]
    assert sizes and max(sizes) <= 10


def test_a_new_schema_version_begins_a_new_chunk() -> None:
    newer = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string(), "large": pa.string(), "more": pa.int32()}, version=2)
    worker = Fold()
    first: Batch = batch(ONE, [insert({"id": 1, "v": 1, "big": "", "large": ""})])
    assert not list(worker.add(first))
    ended = list(worker.add(batch(newer, [update({"id": 1, "v": 2, "more": 1}, position=200)])))
    assert [chunk.table.version for chunk in ended] == [1]
    (last,) = worker.end()
    assert last.table.version == 2
    assert last.patches is not None and last.patches.origin.to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("schema", [ONE, TWO], ids=["one key column", "two key columns"])
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_named_row_is_known_by_the_last_change_of_its_key(schema: TableSchema, data: st.DataObject) -> None:
    changes = data.draw(logs(schema).filter(bool))
    made = fold([batch(schema, changes)], named=True)
    last: dict[Any, tuple[int, int]] = {}
    for change in changes:
        if change.op != Op.TRUNCATE:
            row = change.old if change.op in (Op.DELETE, Op.LEAVE) else change.row
            last[key_of(schema, row)] = (change.position, change.ordinal)
    assert made.names is not None
    parts = [(made.upserts, made.names.upserts), (made.deletes, made.names.deletes)]
    if made.patches is not None:
        parts.append((made.patches.rows, made.names.patches))
    for rows, names in parts:
        assert [last[key_of(schema, row)] for row in rows.to_pylist()] == [tuple(at) for at in names.tolist()]
