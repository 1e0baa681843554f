"""Lanes that hang: given up after a while, replaced, and nobody else's lanes are touched."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.epoch import Epoch
from penstock.engine import lanes as module
from penstock.engine.lanes import Lanes
from penstock.engine.session import SparkHost
from penstock.engine.switchboard import Switchboard
from penstock.errors import LaneLost, LaneSilent
from penstock.journal.record import pack_slices
from tests.processes import is_gone, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def board() -> Iterator[Switchboard]:
    made = Switchboard()
    yield made
    made.close()


def setup_of(name: str, directory: Path) -> dict[str, Any]:
    """What lanes of a files destination are told."""
    return {
        "flow": "shop",
        "name": name,
        "destination": "files",
        "options": {"path": str(directory / name)},
        "source": "postgres",
        "completion": None,
        "staging": str(directory / "staging"),
        "journal": str(directory / "journal"),
    }


def standing(spark: SparkHost, board: Switchboard, name: str, directory: Path) -> Lanes:
    """The one lane of a files destination, called in."""
    made = Lanes(spark, board, f"shop/{name}", setup_of(name, directory), 1)
    made.begin()
    wait_until(made.are_ready, 120)
    return made


def descriptor(name: str) -> dict[str, Any]:
    """An epoch without changes."""
    epoch = Epoch("shop", name, "src1", 1, 0, 10, 1, 1)
    return {"epoch": epoch.to_data(), "bucket": 0, "slices": pack_slices([])}


def test_a_lane_that_hangs_is_given_up_and_the_next_one_does_its_work(
    spark: SparkHost, board: Switchboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = standing(spark, board, "hanging", tmp_path)
    process = hanging.process_ids[0]
    other = standing(spark, board, "other", tmp_path)
    try:
        os.kill(process, signal.SIGSTOP)
        hanging.ask([descriptor("hanging")])
        monkeypatch.setattr(module, "SILENCE", 1.0)
        with pytest.raises(LaneSilent, match="hanging gave no sign of life"):
            hanging.gather()
        monkeypatch.setattr(module, "SILENCE", 60.0)
        other.ask([descriptor("other")])
        assert [receipt["rows"] for receipt in other.gather()] == [0]
        # What the loop does after any error that passes: the lanes begin again, and the epoch is asked anew.
        hanging.begin()
        hanging.ask([descriptor("hanging")])
        assert [receipt["rows"] for receipt in hanging.gather()] == [0]
        wait_until(lambda: is_gone(process), 60)
    finally:
        hanging.close()
        other.close()


def test_work_that_a_pause_interrupts_is_abandoned_and_can_be_asked_for_again(
    spark: SparkHost, board: Switchboard, tmp_path: Path
) -> None:
    paused = standing(spark, board, "paused", tmp_path)
    process = paused.process_ids[0]
    try:
        os.kill(process, signal.SIGSTOP)
        paused.ask([descriptor("paused")])
        paused.interrupt(after=0.2)
        with pytest.raises(LaneLost, match="being stopped"):
            paused.gather()
        paused.abandon()
        # Hung up on: it learns that when it moves again, and Spark starts another in its place.
        os.kill(process, signal.SIGCONT)
        wait_until(lambda: paused.process_ids[0] != process and paused.are_ready(), 60)
        paused.resume()
        paused.ask([descriptor("paused")])
        assert [receipt["rows"] for receipt in paused.gather()] == [0]
    finally:
        paused.close()


def test_lanes_that_call_in_when_nobody_wants_them_any_more_end_and_are_not_started_again(
    spark: SparkHost, board: Switchboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PARTING", 60)
    calls: list[int] = []
    made = Lanes(spark, board, "shop/brief", setup_of("brief", tmp_path), 2)
    called = made._called

    def counted(lane: int, connection: Any, hello: dict[str, Any]) -> None:
        calls.append(lane)
        called(lane, connection, hello)

    made._called = counted  # type: ignore[method-assign]
    spark.context()
    made.begin()
    made.close()
    assert made._failure == "its lanes have ended" and sorted(calls) == [0, 1]
