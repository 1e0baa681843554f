"""A plain model of a table under changes, and logs that a server could have written; what folds and destinations are held to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.core.batch import Op
from penstock.core.schema import TableSchema
from tests.batches import Change, delete, insert, move, table, truncate, update

State = dict[Any, dict[str, Any]]

ONE = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string(), "large": pa.string()})
TWO = table(
    {"v": pa.int32(), "b": pa.string(), "big": pa.string(), "a": pa.int64(), "large": pa.string()}, key=("a", "b"), name="lines"
)


def key_of(schema: TableSchema, row: Any) -> Any:
    """The key of a row."""
    return tuple(row[name] for name in schema.key)


def replay(schema: TableSchema, changes: Iterable[Change], state: State) -> State:
    """The plain model: one change after the other."""
    blank = {c.name: None for c in schema.columns}
    state = dict(state)
    for change in changes:
        if change.op == Op.TRUNCATE:
            state.clear()
        elif change.op == Op.DELETE:
            state.pop(key_of(schema, change.old), None)
        elif change.op == Op.ENTER:
            was = state.pop(key_of(schema, change.old), blank)
            state[key_of(schema, change.row)] = {**was, **change.row}
        elif change.op in (Op.INSERT, Op.SNAPSHOT):
            state[key_of(schema, change.row)] = {**blank, **change.row}
        elif change.op == Op.UPDATE:
            was = state.get(key_of(schema, change.row), blank)
            state[key_of(schema, change.row)] = {**was, **change.row}
    return state


def replay_layout(schema: TableSchema, changes: Iterable[dict[str, Any]]) -> State:
    """The model's rows from changes in the layout of `penstock.formats.layout`, as a consumer would build them."""
    names = {c.name: f"_{c.name}" if c.name.startswith("__") else c.name for c in schema.columns}
    state: State = {}
    for change in changes:
        row = {name: change.get(written) for name, written in names.items()}
        before = change["__before"]
        old = None if before is None else tuple(before[names[name]] for name in schema.key)
        key = key_of(schema, row)
        if change["__op"] == "truncate":
            state.clear()
        elif change["__op"] == "delete":
            state.pop(key, None)
        else:
            was = state.pop(old if old is not None else key, dict.fromkeys(names))
            state[key] = row | {name: was[name] for name in change["__unchanged"]}
    return state


def shared_out(schema: TableSchema, changes: Sequence[Change], buckets: int) -> list[list[Change]]:
    """The changes of each bucket, as a decoder shares them out: by key, TRUNCATE to all."""
    shared: list[list[Change]] = [[] for _ in range(buckets)]
    for change in changes:
        if change.op == Op.TRUNCATE:
            for bucket in shared:
                bucket.append(change)
        else:
            row = change.old if change.op in (Op.DELETE, Op.LEAVE) else change.row
            shared[hash(key_of(schema, row)) % buckets].append(change)
    return shared


def numbered(changes: Iterable[Change | list[Change]]) -> list[Change]:
    """The changes with positions and ordinals in order; a list is the two halves of one change."""
    out: list[Change] = []
    for number, change in enumerate(changes):
        halves = change if isinstance(change, list) else [change]
        out += [Change(half.op, half.row, half.old, position=100 + number // 3, ordinal=1 + number % 3) for half in halves]
    return out


@st.composite
def logs(draw: st.DrawFn, schema: TableSchema) -> list[Change]:
    """A log that a server could have written: keys are inserted once, moved to free keys, and values left out at random."""
    names = [c.name for c in schema.columns if c.name not in schema.key]
    kinds = {c.name: c.type for c in schema.columns}
    alive: set[Any] = {key_of(schema, row) for row in start(schema).values()}
    free = [k for k in keys(schema) if k not in alive]
    changes: list[Change | list[Change]] = []
    number = 0

    def row(key: Any, whole: bool) -> dict[str, Any]:
        nonlocal number
        number += 1
        made = dict(zip(schema.key, key, strict=True))
        for name in names:
            if whole or name == "v" or draw(st.booleans()):
                made[name] = draw(st.sampled_from([None, number])) if pa.types.is_integer(kinds[name]) else f"{name}{number}"
        return made

    for _ in range(draw(st.integers(1, 30))):
        action = draw(st.sampled_from(["insert", "update", "update", "delete", "move", "move", "truncate"]))
        if action == "truncate" and draw(st.integers(0, 4)) == 0:
            changes.append(truncate())
            free, alive = sorted([*free, *alive]), set()
        elif action == "insert" and free:
            key = free.pop(draw(st.integers(0, len(free) - 1)))
            alive.add(key)
            changes.append(insert(row(key, whole=True)))
        elif alive and action in ("update", "delete", "move"):
            key = draw(st.sampled_from(sorted(alive)))
            old = dict(zip(schema.key, key, strict=True))
            if action == "update":
                changes.append(update(row(key, whole=False)))
            elif action == "delete":
                alive.remove(key)
                free.append(key)
                changes.append(delete(old))
            elif free:
                new = free.pop(draw(st.integers(0, len(free) - 1)))
                alive.remove(key)
                alive.add(new)
                free.append(key)
                changes.append(move(old, row(new, whole=False)))
    return numbered(changes)


def keys(schema: TableSchema) -> list[Any]:
    """Some keys."""
    return [(n,) for n in range(1, 9)] if len(schema.key) == 1 else [(n, b) for n in range(1, 4) for b in ("x", "y'")]


def start(schema: TableSchema) -> State:
    """What the destination has before."""
    state = {}
    for n, key in enumerate(keys(schema)[:4]):
        row = dict(zip(schema.key, key, strict=True)) | {"v": n, "big": f"old{n}", "large": f"older{n}"}
        state[key] = row
    return state
