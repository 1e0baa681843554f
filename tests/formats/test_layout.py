"""The columnar layout: what each change looks like, and what its reader gets back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.batch import Op
from penstock.formats.kernels.event_id import event_ids
from penstock.formats.layout import META_NAMES, rows_of, table_of, to_layout
from tests.batches import Change, batch, delete, insert, move, table, truncate, update

TABLE = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string()}, identity="1234", version=3)


def changes(*given: Change | list[Change]) -> list[dict[str, Any]]:
    flat = [half for change in given for half in (change if isinstance(change, list) else [change])]
    made = to_layout(batch(TABLE, flat), "src")
    made.validate(full=True)
    found: list[dict[str, Any]] = made.to_pylist()
    return found


def test_columns_are_those_of_the_specification_and_then_the_table_s_own() -> None:
    made = to_layout(batch(TABLE, [insert({"id": 1, "v": 2, "big": "x"})]), "src")
    names = [
        "__op",
        "__position",
        "__ordinal",
        "__event_id",
        "__committed_at",
        "__xid",
        "__schema_version",
        "__unchanged",
        "__read_later",
        "__before",
    ]
    assert made.schema.names == [*names, "id", "v", "big"]
    assert [made.schema.field(name).type for name in names[:9]] == [
        pa.string(),
        pa.int64(),
        pa.int64(),
        pa.string(),
        pa.timestamp("us", "UTC"),
        pa.int64(),
        pa.int32(),
        pa.list_(pa.string()),
        pa.list_(pa.string()),
    ]


@pytest.mark.parametrize(
    ("op", "name"),
    [(Op.INSERT, "insert"), (Op.UPDATE, "update"), (Op.SNAPSHOT, "snapshot"), (Op.MESSAGE, "message"), (Op.ENTER, "update")],
)
def test_operations_have_their_names(op: Op, name: str) -> None:
    (change,) = changes(Change(op, {"id": 1, "v": None, "big": ""}, {"id": 0} if op == Op.ENTER else None))
    assert (change["__op"], change["id"], change["v"], change["big"]) == (name, 1, None, "")


def test_unchanged_columns_are_named_and_null() -> None:
    (change,) = changes(update({"id": 1, "v": None}))
    assert change["__unchanged"] == ["big"]
    assert change["big"] is None
    assert change["__before"] is None


def test_values_that_were_read_later_are_named_and_there() -> None:
    made = batch(TABLE, [update({"id": 1, "v": 1, "big": "x"}), delete({"id": 2})])
    made = replace(made, read_later=(None, None, pa.array([True, True])))
    first, gone = to_layout(made, "src").to_pylist()
    assert (first["__read_later"], first["__unchanged"], first["big"]) == (["big"], [], "x")
    assert gone["__read_later"] == []


def test_key_change_is_one_row_with_the_old_key_before() -> None:
    (change,) = changes(move({"id": 1}, {"id": 2, "v": 5}))
    assert change["__op"] == "update"
    assert change["id"] == 2
    assert change["__before"] == {"id": 1, "v": None, "big": None, "__unknown": ["v", "big"]}


def test_old_row_tells_null_from_unknown() -> None:
    whole, partly = changes(update({"id": 1, "v": 1, "big": ""}, {"id": 1, "v": None, "big": "b"}), delete({"id": 1}))
    assert whole["__before"] == {"id": 1, "v": None, "big": "b", "__unknown": None}
    assert partly["__before"] == {"id": 1, "v": None, "big": None, "__unknown": ["v", "big"]}


def test_delete_fills_columns_and_before_from_the_old_row() -> None:
    (change,) = changes(delete({"id": 1, "v": 7, "big": "b"}))
    assert (change["id"], change["v"], change["big"]) == (1, 7, "b")
    assert change["__before"] == {"id": 1, "v": 7, "big": "b", "__unknown": None}
    assert change["__unchanged"] == []


def test_truncate_has_no_values() -> None:
    (change,) = changes(truncate())
    assert (change["__op"], change["id"], change["__before"]) == ("truncate", None, None)


def test_metadata_describes_the_table() -> None:
    made = to_layout(batch(TABLE, []), "src")
    assert table_of(made.schema) == TABLE
    metadata = made.schema.metadata
    assert (metadata[b"schema"], metadata[b"table"], metadata[b"version"]) == (b"public", b"orders", b"3")
    assert json.loads(metadata[b"key"]) == ["id"]
    assert json.loads(metadata[b"native"])["v"] == "integer"


def test_other_columns_are_not_taken_for_the_layout() -> None:
    with pytest.raises(ValueError, match="layout"):
        table_of(pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize("column", [*META_NAMES, "__OP", "__unknown"])
def test_a_column_called_like_ours_keeps_its_values_and_its_name(column: str) -> None:
    twin = table({"id": pa.int64(), column: pa.string(), f"_{column}": pa.string()})
    row = {"id": 1, column: "mine", f"_{column}": "other"}
    made = to_layout(batch(twin, [insert(row), delete(row, ordinal=2)]), "src")
    made.validate(full=True)
    assert len({name.lower() for name in made.schema.names}) == len(made.schema.names)
    assert made.column("__op").to_pylist() == ["insert", "delete"]
    assert rows_of(made).to_pylist() == [row, row]
    assert table_of(made.schema) == twin


def test_event_ids_are_fixed_in_width_and_sort_as_the_log_does() -> None:
    position = pa.array([1, 0x16B6C50, 2**63 - 1, 0x16B6C50], pa.int64())
    ordinal = pa.array([2**32 - 1, 1, 7, 10], pa.int64())
    ids = event_ids("pg-1", position, ordinal).to_pylist()
    assert ids[1] == "pg-1-00000000016B6C50-00000001"
    assert ids == [f"pg-1-{p:016X}-{o:08X}" for p, o in zip(position.to_pylist(), ordinal.to_pylist(), strict=True)]
    order = np.lexsort((ordinal.to_numpy(), position.to_numpy()))
    assert sorted(ids) == [ids[i] for i in order]


def test_ordinals_of_a_load_and_of_the_stream_do_not_stand_in_one_batch() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        event_ids("s", pa.array([1, 1], pa.int64()), pa.array([1, 2**32], pa.int64()))


def test_rows_of_a_load_have_longer_ids_than_those_of_the_stream() -> None:
    found = event_ids("s", pa.array([1], pa.int64()), pa.array([(3 << 40) + 7], pa.int64()))
    assert found.to_pylist() == [f"s-{1:016X}-{(3 << 40) + 7:016X}"]


def test_a_slice_of_a_batch_keeps_its_own_rows() -> None:
    whole = batch(TABLE, [insert({"id": n, "v": n, "big": str(n)}, ordinal=n) for n in range(1, 6)])
    kept = whole.filter(pa.array([False, True, False, True, True]))
    assert to_layout(kept, "s").column("__event_id").to_pylist() == [f"s-{100:016X}-{n:08X}" for n in (2, 4, 5)]
