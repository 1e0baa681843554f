"""JSON changes: the object that the specification shows, readable by anyone, exact in every value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.json.format import JsonFormat
from penstock.formats.layout import to_layout
from tests.batches import Change, batch, delete, insert, move, table, truncate, update
from tests.formats.values import EVERY, HARD, assert_identical, rows, whole

TABLE = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string()})


def objects(*given: Change | list[Change]) -> list[dict[str, Any]]:
    flat = [half for change in given for half in (change if isinstance(change, list) else [change])]
    return [json.loads(value) for value in JsonFormat().encode(batch(TABLE, flat), "src")[1].to_pylist()]


def test_a_change_is_the_object_of_the_specification() -> None:
    (change,) = objects(insert({"id": 1, "v": None, "big": 'a"b'}, position=0x16B6C50, ordinal=3, xid=99))
    assert change == {
        "op": "insert",
        "schema": "public",
        "table": "orders",
        "key": {"id": 1},
        "before": None,
        "after": {"id": 1, "v": None, "big": 'a"b'},
        "unchanged": [],
        "position": "0/16B6C50",
        "ordinal": 3,
        "event_id": "src-00000000016B6C50-00000003",
        "committed_at": "2024-05-01T12:00:00.123456Z",
        "xid": 99,
        "schema_version": 1,
    }


def test_unknown_is_absent_and_null_is_null() -> None:
    first, second, third = objects(update({"id": 1, "v": None}), update({"id": 1, "big": None}), update({"id": 1}))
    assert (first["after"], first["unchanged"]) == ({"id": 1, "v": None}, ["big"])
    assert (second["after"], second["unchanged"]) == ({"id": 1, "big": None}, ["v"])
    assert (third["after"], third["unchanged"]) == ({"id": 1}, ["v", "big"])


@pytest.mark.slow
def test_values_that_were_read_later_are_named_where_there_are_such() -> None:
    made = batch(TABLE, [update({"id": 1, "v": 1, "big": "x"}), update({"id": 2, "v": 1, "big": "y"}), update({"id": 3})])
    made = replace(made, read_later=(None, pa.array([True, False, False]), pa.array([True, False, False])))
    values = JsonFormat().encode(made, "src")[1]
    first, second, third = (json.loads(value) for value in values.to_pylist())
    assert first["read_later"] == ["v", "big"] and "read_later" not in second and "read_later" not in third
    assert JsonFormat().decode(values, TABLE).equals(to_layout(made, "src"))


def test_delete_truncate_and_key_change() -> None:
    gone, whole, emptied, moved = objects(
        delete({"id": 1}), delete({"id": 1, "v": None, "big": "b"}), truncate(), move({"id": 1}, {"id": 2, "v": 1})
    )
    assert (gone["key"], gone["before"], gone["after"]) == ({"id": 1}, {"id": 1}, None)
    assert whole["before"] == {"id": 1, "v": None, "big": "b"}
    assert (emptied["op"], emptied["key"], emptied["before"], emptied["after"]) == ("truncate", None, None, None)
    assert (moved["op"], moved["key"], moved["before"], moved["after"]) == ("update", {"id": 2}, {"id": 1}, {"id": 2, "v": 1})


def test_keys_are_objects_and_null_without_one() -> None:
    keys, _ = JsonFormat().encode(batch(TABLE, [insert({"id": 1, "v": 1, "big": ""}), truncate()]), "src")
    assert keys.to_pylist() == [b'{"id":1}', None]
    keyless = table({"v": pa.string()}, key=())
    keys, values = JsonFormat().encode(batch(keyless, [insert({"v": "x"})]), "src")
    assert keys.to_pylist() == [None]
    assert json.loads(values[0].as_py())["key"] is None


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("big", 2**63 - 1, 2**63 - 1),
        ("money", HARD["money"][1], "-0.01"),
        ("fine", HARD["fine"][1], "-0." + "0" * 37 + "1"),
        ("huge", HARD["huge"][1], "-" + "9" * 38),
        ("double", float("nan"), "NaN"),
        ("double", float("-inf"), "-Infinity"),
        ("double", 0.1 + 0.2, 0.30000000000000004),
        ("real", 3.3, 3.3),
        ("bytes", b"\x00\xff", "AP8="),
        ("date", 0, "1970-01-01"),
        ("date", -719893, "-0001-01-01"),
        ("time", HARD["time"][1], "23:59:59.999999"),
        ("timestamp", HARD["timestamp"][0], "1936-10-25T22:10:12.608000"),
        ("timestamp", 601_060_312_290_123_456, "+21016-11-04T13:51:30.123456"),
        ("instant", HARD["instant"][0], "2016-11-04T11:51:30.123456Z"),
        ("boolean", True, True),
        ("text", "\x00\x1f\u2028🎉", "\x00\x1f\u2028🎉"),
    ],
)
def test_values_are_shown_exactly(column: str, value: Any, shown: Any) -> None:
    _, values = JsonFormat().encode(batch(EVERY, [insert({"id": 1, column: value})]), "src")
    assert json.loads(values[0].as_py())["after"][column] == shown


def assert_comes_back(changes: list[Change]) -> None:
    every = batch(EVERY, changes)
    made = to_layout(every, "src")
    back = JsonFormat().decode(JsonFormat().encode(every, "src")[1], EVERY)
    back.validate(full=True)
    for field, left, right in zip(made.schema, made.columns, back.columns, strict=True):
        assert_identical(left, right, field.name)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(rows(), max_size=5), st.lists(rows(), max_size=3))
def test_every_value_comes_back(new: list[dict[str, Any]], old: list[dict[str, Any]]) -> None:
    made = [update({"id": n, **row}, ordinal=n) for n, row in enumerate(new)]
    made += [delete({"id": n, **whole(row)}, ordinal=100 + n) for n, row in enumerate(old)]
    assert_comes_back(made)


def test_hard_values_come_back() -> None:
    assert_comes_back([insert({"id": n, **{k: v[n % len(v)] for k, v in HARD.items()}}, ordinal=n) for n in range(1, 300)])


def test_names_may_be_anything() -> None:
    odd = table(
        {'a"b': pa.int64(), "c/d~e": pa.string(), "f\n": pa.string(), "'": pa.string()}, key=('a"b',), schema='s"', name="t\\"
    )
    row = {'a"b': 1, "c/d~e": "x", "f\n": None, "'": "y"}
    some = batch(odd, [insert(row), update({'a"b': 1}, ordinal=2), delete(row, ordinal=3)])
    back = JsonFormat().decode(JsonFormat().encode(some, "s")[1], odd)
    assert back.to_pylist() == to_layout(some, "s").to_pylist()


def test_objects_that_somebody_wrote_again_are_understood() -> None:
    some = batch(TABLE, [insert({"id": 1, "v": 2, "big": "é"}), update({"id": 1, "v": 3}, ordinal=2)])
    _, values = JsonFormat().encode(some, "s")
    again = [json.dumps(json.loads(v), sort_keys=True, indent=1).encode() for v in values.to_pylist()]
    assert JsonFormat().decode(pa.array(again), TABLE).to_pylist() == to_layout(some, "s").to_pylist()


@pytest.mark.parametrize("text", [b"not json", b"[]", b"{}", b'{"op":"insert","schema":"x","table":"orders"}'])
def test_what_is_no_change_of_the_table_is_refused_without_showing_it(text: bytes) -> None:
    with pytest.raises(ValueError, match="not every") as refused:
        JsonFormat().decode(pa.array([text]), TABLE)
    assert text.decode() not in str(refused.value)


def test_a_file_of_lines_comes_back_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.formats.json.decoder._BLOCK_BYTES", 1000)
    whole = [batch(TABLE, [insert({"id": n, "v": n, "big": "x\ny" * n}, ordinal=n)]) for n in range(1, 50)]
    writer = JsonFormat().open(tmp_path / "a.json", TABLE, "s")
    for part in whole:
        writer.write(part)
    writer.close()
    assert len((tmp_path / "a.json").read_bytes().splitlines()) == 49
    back = [row for part in JsonFormat().read(tmp_path / "a.json", TABLE) for row in part.to_pylist()]
    assert back == [row for part in whole for row in to_layout(part, "s").to_pylist()]
    with pytest.raises(ValueError, match="schema"):
        list(JsonFormat().read(tmp_path / "a.json"))
