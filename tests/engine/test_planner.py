"""The planner: epochs are whole transactions, end at limits and schema changes, and are found again to the byte."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.engine.planner import SMALL_BYTES, Limits, Planner
from penstock.journal.record import Slice, SliceFlag
from penstock.journal.writer import JournalWriter

LIMITS = Limits(max_rows=1000, max_bytes=1 << 20, max_wait=0.0, parallelism=4)


def journal(directory: Path, wanted: Sequence[dict[str, int]], size: int = 100) -> None:
    """One note with a slice for each dictionary of fields; positions follow 101, 102, …, pieces share theirs."""
    writer = JournalWriter(directory)
    if writer.is_new:
        writer.begin(100)
    position, slices = writer.end, []
    for fields in wanted:
        flags = fields.get("flags", 0)
        if not flags & SliceFlag.PIECE or fields.get("ordinal", 0) == 0:
            position += 1
        segment, start, end, checksum = writer.append(memoryview(b"x" * size))
        record = Slice(segment, start, end, position, position, 0, 0, 0, int(time.time() * 1e6), checksum, 10, 1, 0, 0)
        slices.append(record._replace(**fields))
    writer.publish(slices, [], 0)
    writer.close()


def uptos(planner: Planner) -> list[tuple[int, int]]:
    found = []
    while plan := planner.next():
        found.append((plan.upto, len(plan.slices)))
    return found


def test_everything_that_waits_becomes_one_epoch(tmp_path: Path) -> None:
    journal(tmp_path, [{}] * 5)
    assert uptos(Planner(tmp_path, 100, LIMITS)) == [(105, 5)]


@pytest.mark.parametrize("limits", [Limits(20, 1 << 20, 0.0, 1), Limits(1000, 200, 0.0, 1)])
def test_an_epoch_ends_at_the_first_boundary_past_a_limit(tmp_path: Path, limits: Limits) -> None:
    journal(tmp_path, [{}] * 5)
    assert uptos(Planner(tmp_path, 100, limits)) == [(102, 2), (104, 2), (105, 1)]


def test_a_schema_change_begins_an_epoch(tmp_path: Path) -> None:
    journal(tmp_path, [{}, {}, {"flags": int(SliceFlag.SCHEMA)}, {}])
    assert uptos(Planner(tmp_path, 100, LIMITS)) == [(102, 2), (104, 2)]


def test_a_transaction_in_pieces_is_never_split(tmp_path: Path) -> None:
    piece, last = int(SliceFlag.PIECE), int(SliceFlag.PIECE | SliceFlag.LAST_PIECE)
    pieces = [{"flags": last if i == 5 else piece, "ordinal": 10 * i} for i in range(6)]
    journal(tmp_path, [{}, *pieces, {}])
    assert uptos(Planner(tmp_path, 100, Limits(20, 1 << 20, 0.0, 1))) == [(102, 7), (103, 1)]


def test_two_pieced_transactions_side_by_side_are_told_apart(tmp_path: Path) -> None:
    piece, last = int(SliceFlag.PIECE), int(SliceFlag.PIECE | SliceFlag.LAST_PIECE)
    one = [{"flags": piece, "ordinal": 0}, {"flags": piece, "ordinal": 10}, {"flags": last, "ordinal": 20}]
    journal(tmp_path, [*one, *one])
    assert uptos(Planner(tmp_path, 100, Limits(20, 1 << 20, 0.0, 1))) == [(101, 3), (102, 3)]


def test_a_change_waits_for_company_as_long_as_it_may(tmp_path: Path) -> None:
    journal(tmp_path, [{}])
    waiting = Planner(tmp_path, 100, Limits(1000, 1 << 20, 60.0, 1))
    assert waiting.next() is None
    assert 50 < waiting.seconds_left() <= 60
    journal(tmp_path, [{}] * 120)
    full = waiting.next()
    assert full is not None and full.changes >= 1000


def test_a_planned_span_is_found_again(tmp_path: Path) -> None:
    journal(tmp_path, [{}] * 6)
    first = Planner(tmp_path, 100, Limits(20, 1 << 20, 0.0, 1)).next()
    assert first is not None
    later = Planner(tmp_path, 100, LIMITS)
    again = later.again(first.upto)
    assert again is not None and list(again.slices) == list(first.slices)
    assert uptos(later) == [(106, 4)]


def test_a_span_that_the_journal_does_not_show_yet_is_waited_for(tmp_path: Path) -> None:
    journal(tmp_path, [{}] * 2)
    planner = Planner(tmp_path, 100, LIMITS)
    assert planner.again(104) is None
    journal(tmp_path, [{}] * 2)
    again = planner.again(104)
    assert again is not None and len(again.slices) == 4


def test_small_epochs_and_key_changes_use_one_lane(tmp_path: Path) -> None:
    journal(tmp_path, [{}])
    small = Planner(tmp_path, 100, LIMITS).next()
    assert small is not None and small.buckets(4) == 1
    journal(tmp_path / "big", [{}] * 2, size=SMALL_BYTES)
    big = Planner(tmp_path / "big", 100, LIMITS).next()
    assert big is not None and big.buckets(4) == 4
    journal(tmp_path / "moved", [{"flags": int(SliceFlag.KEY_CHANGE)}] * 2, size=SMALL_BYTES)
    moved = Planner(tmp_path / "moved", 100, LIMITS).next()
    assert moved is not None and moved.buckets(4) == 1
    journal(tmp_path / "emptied", [{"flags": int(SliceFlag.TRUNCATE)}] * 2, size=SMALL_BYTES)
    emptied = Planner(tmp_path / "emptied", 100, LIMITS).next()
    assert emptied is not None and (emptied.buckets(4), emptied.buckets(4, truncates_alone=True)) == (4, 1)


def test_the_idle_mark_is_known_only_when_nothing_waits(tmp_path: Path) -> None:
    journal(tmp_path, [{}])
    planner = Planner(tmp_path, 100, Limits(1000, 1 << 20, 60.0, 1))
    planner.next()
    assert planner.idle_mark == 0
    caught_up = Planner(tmp_path, 101, LIMITS)
    assert caught_up.next() is None
    assert caught_up.idle_mark == 101
