"""A lane's leash: signs of life go out, and nothing is written after the end of the driver's lease."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import pytest

from penstock.core.clock import clock
from penstock.core.epoch import Epoch
from penstock.engine import lane
from penstock.engine.messages import receive, send
from penstock.journal.record import pack_slices
from tests.processes import wait_until


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connection, Connection]]:
    monkeypatch.setattr(lane, "PROGRESS", 0.05)
    monkeypatch.setattr(lane, "LISTEN", 0.0)
    driver, here = Pipe()
    yield driver, here
    driver.close()
    here.close()


def checking(leash: lane._Leash) -> tuple[Thread, list[BaseException]]:
    """A check in a thread of its own, and what it raised."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            leash.check()
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=work)
    thread.start()
    return thread, raised


def test_once_the_lease_is_over_a_lane_waits_for_word_of_its_renewal(ends: tuple[Connection, Connection]) -> None:
    thread, raised = checking(lane._Leash(ends[1], 7, clock() - 1))
    # Whoever drives it may be busy: it asks again, and goes on waiting also when told that the lease is still over.
    for _ in range(3):
        assert receive(ends[0]) == {"ask": 7, "progress": 0}
        send(ends[0], {"deadline": clock() - 1})
    assert thread.is_alive()
    send(ends[0], {"deadline": clock() + 60})
    thread.join(30)
    assert not thread.is_alive() and not raised


def test_a_lane_that_waits_ends_when_it_is_hung_up_on(ends: tuple[Connection, Connection]) -> None:
    thread, raised = checking(lane._Leash(ends[1], 7, clock() - 1))
    assert receive(ends[0])["progress"] == 0
    assert thread.is_alive()
    ends[0].close()
    thread.join(30)
    assert not thread.is_alive() and isinstance(raised[0], EOFError | ConnectionError)


def test_a_lease_that_ends_while_a_lane_works_is_noticed(ends: tuple[Connection, Connection]) -> None:
    leash = lane._Leash(ends[1], 7, clock() + 60)
    leash.check()
    send(ends[0], {"deadline": clock() - 1})
    wait_until(lambda: ends[1].poll(0))
    thread, _ = checking(leash)
    assert receive(ends[0])["ask"] == 7
    assert thread.is_alive()
    send(ends[0], {"deadline": clock() + 60})
    thread.join(30)
    assert not thread.is_alive()


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
