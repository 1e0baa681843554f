"""A lane's leash: signs of life go out, and nothing is written after the end of the driver's lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import pytest

from penstock.core.clock import clock
from penstock.core.epoch import Epoch
from penstock.engine import lane
from penstock.engine.messages import receive, send
from penstock.errors import LeaseLost
from penstock.journal.record import pack_slices


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connection, Connection]]:
    monkeypatch.setattr(lane, "ANSWER", 0.2)
    monkeypatch.setattr(lane, "LISTEN", -1.0)
    driver, here = Pipe()
    yield driver, here
    driver.close()
    here.close()


def answering(driver: Connection, answer: Callable[[], dict[str, object]]) -> Thread:
    def work() -> None:
        assert receive(driver)["progress"] == 0
        send(driver, answer())

    thread = Thread(target=work)
    thread.start()
    return thread


def test_nothing_is_written_once_the_lease_is_over_and_the_driver_is_silent(ends: tuple[Connection, Connection]) -> None:
    leash = lane._Leash(ends[1], 7, clock() - 1)
    with pytest.raises(LeaseLost):
        leash.check()
    assert receive(ends[0]) == {"ask": 7, "progress": 0}


def test_a_driver_that_lives_extends_the_lease(ends: tuple[Connection, Connection]) -> None:
    leash = lane._Leash(ends[1], 7, clock() - 1)
    thread = answering(ends[0], lambda: {"deadline": clock() + 60})
    leash.check()
    thread.join()
    leash.check()
    send(ends[0], {"deadline": clock() - 1})
    with pytest.raises(LeaseLost):
        leash.check()


def test_a_driver_that_hangs_up_ends_the_work(ends: tuple[Connection, Connection]) -> None:
    leash = lane._Leash(ends[1], 7, clock() + 60)
    leash.check()
    ends[0].close()
    with pytest.raises(EOFError):
        leash.check()


def test_a_writer_s_progress_reaches_the_driver_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "PROGRESS", 0.0)
    setup = {
        "flow": "shop",
        "name": "hook",
        "destination": "http",
        "options": {"url": "http://127.0.0.1:9/"},
        "source": "postgres",
    }
    work = lane.Work({**setup, "staging": str(tmp_path / "staging"), "journal": str(tmp_path / "journal")})
    driver, ours = Pipe()
    epoch = Epoch("shop", "hook", "src1", 1, 0, 10, 1, 1)
    receipt = work.do({"ask": 7, "epoch": epoch.to_data(), "bucket": 0, "slices": pack_slices([])}, ours)
    assert receipt["rows"] == 0
    work._writer.progress()
    assert receive(driver) == {"ask": 7, "progress": 0}
    driver.close()
    with pytest.raises(ConnectionError):
        work._writer.progress()
    work.close()
    ours.close()
