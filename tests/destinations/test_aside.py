"""What is set aside: refused changes and, where the flow says so, the later changes of their keys, whatever moves where."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batch import Batch, Odd, Op
from penstock.core.packing import unpack
from penstock.core.schema import TableSchema
from penstock.destinations.aside import Aside, Fault
from penstock.errors import DeadLettersFull
from penstock.formats.json.format import key_texts
from tests.batches import Change, batch, delete, insert, move, table, truncate, update
from tests.table_model import ONE, TWO, key_of, logs, numbered

Identity = tuple[int, int]


def identities(batches: Sequence[Batch]) -> list[Identity]:
    """Position and ordinal of every change, a key change once."""
    found: list[Identity] = []
    for b in batches:
        at = zip(b.position.to_pylist(), b.ordinal.to_pylist(), b.op.to_pylist(), strict=True)
        found += [(position, ordinal) for position, ordinal, op in at if op != Op.LEAVE]
    return found


def through(
    aside: Aside, schema: TableSchema, changes: Sequence[Change], refused: set[Identity], cuts: Sequence[int]
) -> list[Batch]:
    """What is left of changes, cut into batches, when a writer refuses some of what reaches it."""
    edges = sorted({0, len(changes), *(min(cut, len(changes)) for cut in cuts)})
    # No cut parts the halves of a key change: decoders never do.
    edges = [e for e in edges if not 0 < e < len(changes) or changes[e].op != Op.ENTER]
    kept = []
    for passed in aside.passed(batch(schema, changes[a:b]) for a, b in pairwise(edges)):
        at = zip(passed.position.to_pylist(), passed.ordinal.to_pylist(), strict=True)
        bad = np.array([identity in refused for identity in at])
        if bad.any():
            passed = passed.filter(pa.array(aside.refuse(passed, [Fault(bad, "too_big", "it is too big")])))
        kept.append(passed)
    return kept


def model(
    schema: TableSchema, changes: Sequence[Change], refused: set[Identity], parked: set[Any], waits: bool
) -> tuple[list[Identity], dict[Identity, str], set[Any]]:
    """One change after the other: what is delivered, what is set aside by code, and the keys that wait at the end."""
    parked = set(parked)
    delivered: list[Identity] = []
    aside: dict[Identity, str] = {}
    for change in changes:
        at = (change.position, change.ordinal)
        if change.op == Op.LEAVE:
            continue
        if change.op == Op.TRUNCATE:
            parked.clear()
            delivered.append(at)
            continue
        keys = {key_of(schema, change.old if change.op == Op.DELETE else change.row)}
        if change.op == Op.ENTER:
            keys.add(key_of(schema, change.old))
        waiting = waits and bool(keys & parked)
        if waiting or at in refused:
            aside[at] = "waiting" if waiting else "too_big"
            parked |= keys if waits else set()
        else:
            delivered.append(at)
    return delivered, aside, parked


def texts(schema: TableSchema, keys: Sequence[Any]) -> pa.Array:
    rows = [dict(zip(schema.key, key, strict=True)) for key in keys]
    return key_texts(schema, batch(schema, [insert(row) for row in rows]).rows, {})


@pytest.mark.slow
@pytest.mark.parametrize("schema", [ONE, TWO], ids=["one key column", "two key columns"])
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_any_log_is_held_back_as_the_model_says(schema: TableSchema, data: st.DataObject) -> None:
    changes = data.draw(logs(schema))
    waits = data.draw(st.booleans())
    all_keys = sorted({key_of(schema, c.row) for c in changes if c.row})
    parked = set(data.draw(st.lists(st.sampled_from(all_keys), max_size=2))) if waits and all_keys else set()
    changed = [(c.position, c.ordinal) for c in changes if c.op not in (Op.TRUNCATE, Op.LEAVE)]
    refused = set(data.draw(st.lists(st.sampled_from(changed), max_size=3))) if changed else set()
    aside = Aside({(schema.schema, schema.name): texts(schema, sorted(parked))} if parked else {}, waits=waits)
    kept = through(aside, schema, changes, refused, data.draw(st.lists(st.integers(1, 40), max_size=4)))
    delivered, set_aside, left = model(schema, changes, refused, parked, waits)
    assert identities(kept) == delivered
    found = {(x["position"], x["ordinal"]): x for x in aside.letters}
    assert len(found) == len(aside.letters)
    # A change that would have been refused anyway may say so instead of that it waits.
    assert set(found) == set(set_aside)
    assert all(x["code"] == set_aside[at] or at in refused for at, x in found.items())
    last = {(c.position, c.ordinal): c for c in changes}
    for at, letter in found.items():
        whole = unpack(letter["content"])
        assert whole.position.to_pylist()[0] == at[0] and len(whole) == (2 if last[at].op == Op.ENTER else 1)
        assert letter["key"] in letter["keys"] and len(letter["keys"]) == len(whole)
    held = aside.parked.get((schema.schema, schema.name), pa.array([], pa.large_string()))
    assert set(held.to_pylist()) == (set(texts(schema, sorted(left)).to_pylist()) if left else set())


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.bool_(), [True, False]),
        (pa.int64(), [1, -(2**63)]),
        (pa.float64(), [0.0, -0.0, float("nan"), float("inf"), 0.1]),
        (pa.string(), ['q"\\\n', "", "1"]),
        (pa.binary(), [b"\x00", b""]),
        (pa.decimal128(12, 2), [Decimal("1.10"), Decimal("-2.00")]),
        (pa.date32(), [dt.date(2024, 1, 1), dt.date(1, 1, 1)]),
        (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    ],
)
def test_keys_of_every_kind_are_found_again(kind: pa.DataType, values: list[Any]) -> None:
    schema = table({"id": kind, "v": pa.int32()})
    aside = Aside()
    first = numbered([insert({"id": values[0], "v": 1})])
    assert identities(through(aside, schema, first, {(100, 1)}, ())) == []
    rest = numbered([update({"id": value, "v": 2}) for value in values])
    kept = through(aside, schema, rest, set(), ())
    same = 2 if kind == pa.float64() else 1
    assert len(identities(kept)) == len(values) - same and len(aside.letters) == 1 + same


def test_a_key_that_no_type_holds_is_known_by_its_text() -> None:
    schema = table({"id": pa.date32(), "v": pa.int32()})
    changes = numbered([insert({"id": None, "v": 1}), insert({"id": None, "v": 2})])
    made = batch(schema, changes, {"id": Odd(pa.array([0, 1], pa.int64()), pa.array(["infinity", "-infinity"]))})
    aside = Aside()
    assert aside.refuse(made, [Fault(np.array([True, False]), "odd", "no")]).tolist() == [False, True]
    assert aside.letters[0]["key"] == '{"id":"infinity"}'


def test_changes_of_a_table_without_a_key_do_not_wait() -> None:
    schema = table({"id": pa.int64()}, key=())
    aside = Aside()
    kept = through(aside, schema, numbered([insert({"id": 1}) for _ in range(5)]), {(100, 2)}, (2, 3))
    assert identities(kept) == [(100, 1), (100, 3), (101, 1), (101, 2)] and aside.letters[0]["keys"] == []


def test_a_truncate_that_is_ignored_frees_nobody() -> None:
    changes = numbered([insert({"id": 1, "v": 1}), truncate(), update({"id": 1, "v": 2})])
    for applies, left in ((True, [(100, 2), (100, 3)]), (False, [(100, 2)])):
        aside = Aside(truncates=applies)
        assert identities(through(aside, ONE, changes, {(100, 1)}, ())) == left
        assert aside.truncated == ({("public", "orders"): (100, 2)} if applies else {})


def test_what_a_commit_refused_goes_with_all_changes_of_its_key() -> None:
    changes = numbered(
        [insert({"id": 1, "v": 1}), insert({"id": 2, "v": 1}), move({"id": 2}, {"id": 3, "v": 2}), update({"id": 3, "v": 4})]
    )
    refusal = {
        "schema": "public",
        "table": "orders",
        "position": 101,
        "ordinal": 1,
        "code": "constraint",
        "reason": "check v_small",
    }
    for waits in (True, False):
        aside = Aside(waits=waits)
        aside.condemn([refusal], [batch(ONE, changes)])
        assert identities(through(aside, ONE, changes, set(), ())) == [(100, 1), (100, 2)]
        assert [(x["position"], x["ordinal"], x["code"]) for x in aside.letters] == [
            (100, 3, "constraint"),
            (101, 1, "constraint"),
        ]
        assert aside.letters[0]["keys"] == ['{"id":2}', '{"id":3}']


def test_a_change_that_the_writer_names_is_fetched() -> None:
    changes = numbered([insert({"id": 1, "v": 1}), delete({"id": 1}), move({"id": 5}, {"id": 6, "v": 1})])
    aside = Aside()
    named = [
        {"schema": "public", "table": "orders", "position": 100, "ordinal": n, "code": "http_refused", "reason": "422"}
        for n in (2, 3)
    ]
    aside.fetch(named, [batch(ONE, changes[:1]), batch(ONE, changes[1:])])
    assert [(x["ordinal"], x["op"]) for x in aside.letters] == [(2, "delete"), (3, "update")]


def test_more_than_there_is_room_for_is_refused() -> None:
    aside = Aside(room=3)
    changes = numbered([insert({"id": n, "v": 1}) for n in range(10)])
    with pytest.raises(DeadLettersFull):
        through(aside, ONE, changes, {(c.position, c.ordinal) for c in changes}, ())


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("waits", [True, False])
def test_both_halves_of_a_key_change_go_together(half: int, waits: bool) -> None:
    made = batch(ONE, numbered([move({"id": 1}, {"id": 2, "v": 1}), update({"id": 3, "v": 1})]))
    aside = Aside(waits=waits)
    left = aside.refuse(made, [Fault(np.arange(3) == half, "odd", "no")])
    assert left.tolist() == [False, False, True]
    assert len(aside.letters) == 1 and aside.letters[0]["code"] == "odd" and len(unpack(aside.letters[0]["content"])) == 2
