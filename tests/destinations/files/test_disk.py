"""Steps that wait for the disk, several at a time."""

from __future__ import annotations

import threading

import pytest

from penstock.destinations.files.disk import side_by_side


@pytest.mark.parametrize("count", [0, 1, 15, 16, 100])
def test_every_step_is_taken_once(count: int) -> None:
    taken: list[int] = []
    side_by_side(taken.append, range(count))
    assert sorted(taken) == list(range(count))


def test_an_error_is_raised_when_all_other_steps_have_ended() -> None:
    both, taken = threading.Barrier(2), []

    def step(number: int) -> None:
        if number < 2:
            both.wait(30)
        if number == 0:
            raise OSError("full")
        taken.append(number)

    with pytest.raises(OSError, match="full"):
        side_by_side(step, range(40))
    assert sorted(taken) == list(range(1, 40))
