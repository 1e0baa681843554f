"""Values at the edge of their type that DuckDB holds although Arrow does not know them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.core.batch import Batch, Odd
from penstock.core.schema import TableSchema
from penstock.errors import ValueUnrepresentable
from tests.batches import batch, delete, insert, move, table
from tests.conformance.harness import Harness

DATED = table({"d": pa.date32(), "at": pa.timestamp("us", "UTC"), "t": pa.time64("us"), "v": pa.int32()}, key=("d",))


def odd(*cells: tuple[int, str]) -> Odd:
    return Odd(pa.array([row for row, _ in cells], pa.int64()), pa.array([text for _, text in cells], pa.string()))


def deliver(harness: Harness, number: int, schema: TableSchema, made: Batch) -> int:
    epoch = harness.epoch(number)
    harness.destination.prepare([schema])
    receipt = harness.writer().write(epoch, 0, iter([made]))
    harness.destination.commit(epoch, [receipt])
    return int(receipt["counts"].get("unrepresentable", 0))


def rows(harness: Harness) -> list[tuple[Any, ...]]:
    harness.close()
    with duckdb.connect(str(harness.home / "target.duckdb"), read_only=True) as connection:
        return connection.execute(
            'SELECT d::varchar, "at"::varchar, t::varchar, v FROM target.public.orders ORDER BY v'
        ).fetchall()


def test_an_infinite_key_is_found_again_moved_and_removed(tmp_path: Path) -> None:
    harness = Harness("duckdb", tmp_path)
    first = [insert({"d": None, "at": None, "t": None, "v": v}, ordinal=v) for v in (1, 2)]
    made = batch(
        DATED, first, {"d": odd((0, "infinity"), (1, "-infinity")), "at": odd((0, "-infinity")), "t": odd((1, "24:00:00"))}
    )
    assert deliver(harness, 1, DATED, made) == 0
    assert rows(harness) == [("infinity", "-infinity", None, 1), ("-infinity", None, "24:00:00", 2)]
    changes = [*move({"d": None}, {"d": None, "at": None, "t": None, "v": 3}, position=1001), delete({"d": None}, position=1002)]
    made = batch(DATED, changes, {"d": odd((0, "infinity"), (1, "-infinity"), (2, "-infinity"))})
    made = replace(made, before_odd={"d": odd((1, "infinity"))})
    # The row of -infinity is overwritten by the one that moves there, and then removed.
    assert deliver(harness, 2, DATED, made) == 0
    assert rows(harness) == []


@pytest.mark.parametrize(("column", "text"), [("at", "294276-12-31 23:59:59+00"), ("t", "25:00:00")])
def test_what_duckdb_cannot_hold_either_follows_the_policy(tmp_path: Path, column: str, text: str) -> None:
    made = batch(DATED, [insert({"d": 1, "at": None, "t": None, "v": 1})], {column: odd((0, text))})
    with pytest.raises(ValueUnrepresentable):
        deliver(Harness("duckdb", tmp_path / "a"), 1, DATED, made)
    assert deliver(Harness("duckdb", tmp_path / "b", on_unrepresentable="null"), 1, DATED, made) == 1
