"""The planner: epochs are whole transactions, end at limits and schema changes, and are found again to the byte."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

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


def pieces(count: int, changes: int = 10) -> list[dict[str, int]]:
    """A transaction of that many pieces."""
    piece, last = int(SliceFlag.PIECE), int(SliceFlag.PIECE | SliceFlag.LAST_PIECE)
    return [{"flags": last if i == count - 1 else piece, "ordinal": changes * i, "changes": changes} for i in range(count)]


SPLIT = Limits(20, 1 << 20, 0.0, 1, splits=True)


def test_a_transaction_past_the_limits_is_split_where_that_is_allowed(tmp_path: Path) -> None:
    journal(tmp_path, [{}, *pieces(6), {}, *pieces(2)])
    planner = Planner(tmp_path, 100, SPLIT)
    found = []
    while plan := planner.next():
        found.append((plan.upto, plan.part, plan.changes))
    assert found == [(101, 10, 20), (101, 30, 20), (101, 50, 20), (103, 0, 20), (104, 0, 20)]


def test_a_restart_inside_of_a_transaction_finds_what_is_left_of_it(tmp_path: Path) -> None:
    journal(tmp_path, [{}, *pieces(6), {}])
    assert uptos(Planner(tmp_path, 101, SPLIT, 30)) == [(101, 2), (103, 2)]
    # Without a limit that it exceeds, or when the rule has changed meanwhile, the rest goes as one.
    assert uptos(Planner(tmp_path, 101, LIMITS, 30)) == [(103, 4)]


def test_a_planned_part_is_found_again(tmp_path: Path) -> None:
    journal(tmp_path, [{}, *pieces(6), {}])
    planner, later = Planner(tmp_path, 100, SPLIT), Planner(tmp_path, 100, LIMITS)
    for _ in range(3):
        first = planner.next()
        assert first is not None
        assert later.again(first.upto, first.part) == first
    assert uptos(later) == [(103, 2)]


def test_a_part_is_found_again_behind_the_marks_of_an_idle_source(tmp_path: Path) -> None:
    journal(tmp_path, [{}])
    writer = JournalWriter(tmp_path)
    writer.publish([], [], 150)
    writer.close()
    planner = Planner(tmp_path, 100, SPLIT)
    assert planner.again(101, 20) is None
    journal(tmp_path, pieces(4))
    again = planner.again(101, 20)
    assert again is not None and (again.upto, again.part, again.changes) == (101, 20, 30)


def test_a_planned_part_is_found_again_in_a_journal_with_other_pieces(tmp_path: Path) -> None:
    journal(tmp_path, [{}, *pieces(4, 15), {}])
    planner = Planner(tmp_path, 101, SPLIT, 20)
    again = planner.again(101, 40)
    assert again is not None and [s.ordinal for s in again.slices] == [15, 30]
    rest = planner.next()
    assert rest is not None and [s.ordinal for s in rest.slices] == [30, 45]
    assert planner.backlog() == 100


def test_the_end_of_a_transaction_of_which_parts_were_rolled_back_goes_with_each_of_its_epochs(tmp_path: Path) -> None:
    gone = int(SliceFlag.PARTLY_GONE | SliceFlag.STREAMED)
    parts = [{**p, "flags": p["flags"] | gone} for p in pieces(6)]
    parts[-1]["changes"] = 0
    journal(tmp_path, parts)
    planner = Planner(tmp_path, 100, SPLIT)
    plans = [planner.next(), planner.next(), planner.next(), planner.next()]
    assert [None if p is None else (p.part, [s.ordinal for s in p.beyond]) for p in plans] == [
        (20, [50]),
        (40, [50]),
        (0, []),
        None,
    ]


def test_a_change_waits_for_company_as_long_as_it_may(tmp_path: Path) -> None:
    journal(tmp_path, [{}])
    waiting = Planner(tmp_path, 100, Limits(1000, 1 << 20, 60.0, 1))
    assert waiting.next() is None
    assert 50 < waiting.seconds_left() <= 60
    journal(tmp_path, [{}] * 120)
    full = waiting.next()
    assert full is not None and full.changes >= 1000


def test_a_clock_that_jumps_back_makes_no_change_wait_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(tmp_path, [{}])
    now = [1000.0]
    clock = SimpleNamespace(time=lambda: time.time() - 3600, monotonic=lambda: now[0])
    monkeypatch.setattr("penstock.engine.planner.time", clock)
    waiting = Planner(tmp_path, 100, Limits(1000, 1 << 20, 60.0, 1))
    assert waiting.next() is None and waiting.seconds_left() == 60
    now[0] += 61
    assert waiting.next() is not None


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
