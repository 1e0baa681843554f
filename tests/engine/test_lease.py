"""The lease in the hands of processes: waited for, renewed, lost by who stands still, and never missed by who lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from penstock.core.clock import clock
from penstock.engine import lease as leasing
from penstock.engine.deadline import EXPIRED, DeadlinePage
from penstock.engine.lease import HeldLease
from penstock.errors import FlowRunning, LeaseLost
from penstock.ledger.leases import Holder, Leases
from penstock.ledger.ledger import Ledger
from tests.processes import wait_until

HOLDER = textwrap.dedent(
    """
    import sys, threading
    from pathlib import Path
    from penstock.engine import lease as leasing
    from penstock.errors import LeaseLost
    held = leasing.take(Path(sys.argv[1]), "shop", "worker", ttl=float(sys.argv[2]))
    print("held", flush=True)
    for line in sys.stdin:
        try:
            held.check()
            print("valid", flush=True)
        except LeaseLost as error:
            print("lost", error, flush=True)
    """
)


class Other:
    """A process that holds the lease, and says on request whether it still does."""

    def __init__(self, path: Path, ttl: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), str(ttl)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "held"

    def ask(self) -> str:
        assert self.process.stdin is not None
        print("?", file=self.process.stdin, flush=True)
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Callable[[float], Other]]:
    made: list[Other] = []

    def make(ttl: float) -> Other:
        made.append(Other(tmp_path / "ledger.db", ttl))
        return made[-1]

    yield make
    for one in made:
        one.end()


def successor(path: Path) -> HeldLease:
    held = leasing.take(path, "shop", "worker", wait=lambda: True)
    assert held is not None
    return held


def test_a_worker_that_stood_still_loses_its_lease_and_knows_it_first_of_all(
    tmp_path: Path, other: Callable[[float], Other]
) -> None:
    first = other(1.0)
    assert first.ask() == "valid"
    first.process.send_signal(signal.SIGSTOP)
    held = successor(tmp_path / "ledger.db")
    first.process.send_signal(signal.SIGCONT)
    answer = first.ask()
    assert answer.startswith("lost") and f"process {os.getpid()}" in answer
    assert held.valid() and held.took_over
    held.give_up()


def test_a_worker_that_stood_still_and_was_not_missed_goes_on(tmp_path: Path, other: Callable[[float], Other]) -> None:
    first = other(0.5)
    first.process.send_signal(signal.SIGSTOP)
    leases = Leases(tmp_path / "ledger.db")
    wait_until(lambda: bool((found := leases.find("shop")) and clock() > found.deadline))
    leases.close()
    first.process.send_signal(signal.SIGCONT)
    assert first.ask() == "valid"


def test_a_second_worker_waits_says_for_whom_and_is_at_once_the_successor_of_a_dead_one(
    tmp_path: Path, other: Callable[[float], Other]
) -> None:
    first = other(3600.0)
    path = tmp_path / "ledger.db"
    with pytest.raises(FlowRunning, match=str(first.process.pid)):
        leasing.take(path, "shop", "flow cleanup")
    looks = []

    def look() -> bool:
        looks.append(1)
        return len(looks) < 3

    with capture_logs() as logs:
        assert leasing.take(path, "shop", "worker", wait=look) is None
    said = [line for line in logs if line["event"].startswith("waiting")]
    assert len(said) == 1 and str(first.process.pid) in said[0]["holder"]
    taken: list[HeldLease] = []
    waiting = threading.Thread(target=lambda: taken.append(successor(path)))
    waiting.start()
    first.process.kill()
    waiting.join(30)
    assert taken and taken[0].valid()
    taken[0].give_up()


def test_a_lease_is_renewed_by_itself_and_given_up_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    held = leasing.take(path, "shop", "worker", ttl=0.3)
    assert held is not None
    before = held.deadline
    wait_until(lambda: held.deadline > before + 0.5)
    assert held.valid()
    held.give_up()
    with leasing.holding(path, "shop", "flow cleanup") as mine:
        assert mine.generation == held.generation + 1 and not mine.took_over
        with pytest.raises(LeaseLost):
            held.check()


def test_a_holder_whose_ledger_was_forgotten_writes_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    lost = threading.Event()
    held = leasing.take(path, "shop", "worker", lost=lost.set, ttl=0.3)
    assert held is not None
    ledger = Ledger(path)
    ledger.forget("shop")
    ledger.close()
    assert lost.wait(30)
    with pytest.raises(LeaseLost):
        held.check()
    held.give_up()


@pytest.mark.slow
def test_capture_ends_by_itself_with_the_lease_of_a_worker_that_stands_still(tmp_path: Path) -> None:
    """The child's own watch; its parent, this process, says nothing and closes nothing."""
    page = DeadlinePage(clock() + 3600)
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock.engine.capturing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(page.file,),
    )
    assert child.stdin is not None and child.stdout is not None
    setup = {"source": "postgres", "journal": str(tmp_path / "journal"), "lease": page.file}
    child.stdin.write(json.dumps(setup).encode() + b"\n")
    child.stdin.flush()
    assert b"opened" in child.stdout.readline()
    assert child.poll() is None
    page.set(clock() + 1.5)
    assert child.wait(30) == EXPIRED
    child.stdin.close()
    child.stdout.close()
    page.close()


@pytest.mark.slow
def test_who_stands_still_within_a_transaction_is_ended_when_its_lease_is_over(tmp_path: Path) -> None:
    """A file's lock goes only with the process that has it: without its end nobody could ever take the flow over."""
    path = tmp_path / "ledger.db"
    program = HOLDER.partition("for line in")[0] + textwrap.dedent(
        """
        import os, signal
        with held._leases._database.transaction("shop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path), "1"], stdout=subprocess.PIPE, text=True) as still:
        try:
            assert still.stdout is not None and still.stdout.readline() == "held\n"
            wait_until(lambda: psutil.Process(still.pid).status() == psutil.STATUS_STOPPED)
            deadline = clock() + 60
            with capture_logs() as said:
                held = leasing.take(path, "shop", "worker", wait=lambda: clock() < deadline)
            assert held is not None
            held.give_up()
            assert still.wait(10) == -signal.SIGKILL
            assert "ended a process that stood still and kept the ledger" in [one["event"] for one in said]
        finally:
            still.kill()


def test_nobody_is_ended_who_moves_or_is_another_process_of_that_number(tmp_path: Path) -> None:
    me = Holder.here()
    assert not me.stands_still() and not me.end()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as still:
        try:
            os.kill(still.pid, signal.SIGSTOP)
            wait_until(lambda: psutil.Process(still.pid).status() == psutil.STATUS_STOPPED)
            for stranger in (replace(me, pid=still.pid), replace(me, pid=still.pid, machine="elsewhere")):
                assert not stranger.stands_still() and not stranger.end()
            assert still.poll() is None
        finally:
            still.kill()
