"""The nursery's children: forked, told where they are, seen to end, and never left behind."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.core.clock import clock
from penstock.engine import daemon
from penstock.engine.deadline import EXPIRED, DeadlinePage
from penstock.engine.nursery import LEASE_FILE, Child, Nursery
from tests.processes import wait_until


def say(child: Child, journal: Path, lease: int | None = None, **environment: str) -> dict[str, Any]:
    """The child's first word."""
    around = {"environment": {**os.environ, **environment}, "directory": str(journal.parent)}
    setup = {"source": "postgres", "journal": str(journal), "lease": lease, **around}
    child.stdin.write(json.dumps(setup).encode() + b"\n")
    child.stdin.flush()
    return dict(json.loads(child.stdout.readline() or b"{}"))


@pytest.mark.slow
def test_children_live_and_end_apart_and_a_killed_cradle_is_followed_by_another(tmp_path: Path) -> None:
    page = DeadlinePage(clock() + 3600)
    with Nursery() as nursery:
        one, other, third = (nursery.bear("postgres", page.file) for _ in range(3))
        assert "opened" in say(one, tmp_path / "one", LEASE_FILE) and "opened" in say(other, tmp_path / "other")
        cradle = psutil.Process(one.pid).parent()
        assert (
            cradle is not None and cradle.pid == psutil.Process(other.pid).ppid() and psutil.Process(one.pid).name() == "capture"
        )
        assert psutil.Process(one.pid).cwd() == str(tmp_path)
        assert "unknown failpoint" in say(third, tmp_path / "third", PENSTOCK_FAILPOINT="nowhere")["error"]["message"]
        assert third.wait(30) and third.returncode == 1
        address = nursery.address()
        page.set(clock())
        assert one.wait(30) and one.returncode == EXPIRED and other.poll() is None
        cradle.send_signal(signal.SIGKILL)
        assert other.wait(30) and other.returncode == -signal.SIGKILL
        other.kill()
        # Spark's daemon does not wait at the door of a cradle that is gone: it serves by itself.
        assert daemon._serve_there(address) is None
        again = nursery.bear("postgres", None)
        assert "opened" in say(again, tmp_path / "other") and nursery.address() == address
        again.stdin.close()
        assert again.wait(30) and again.returncode == 0
        last = nursery.bear("postgres", None)
    assert last.wait(30)
    wait_until(lambda: not psutil.pid_exists(last.pid), 30)
    for child in (one, other, third, again, last):
        child.close()
    page.close()


def test_a_cradle_that_has_ended_is_followed_by_another_when_its_address_is_asked_for() -> None:
    with Nursery() as nursery:
        address = nursery.address()
        cradle = _cradle(address)
        cradle.kill()
        wait_until(lambda: cradle.status() == psutil.STATUS_ZOMBIE, 30)
        assert nursery.address() == address
        assert _cradle(address).pid != cradle.pid


def _cradle(address: str) -> psutil.Process:
    living = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    (found,) = (p for p in living if os.path.dirname(address) in p.cmdline())
    return found


def _watch(child: Child) -> bool:
    while child.poll() is None:
        pass
    return child.wait(30)


@pytest.mark.slow
def test_several_threads_may_wait_for_one_childs_end(tmp_path: Path) -> None:
    with Nursery() as nursery, ThreadPoolExecutor(8) as threads:
        for number in range(10):
            child = nursery.bear("postgres", None)
            assert "opened" in say(child, tmp_path / str(number))
            waiting = [threads.submit(_watch, child) for _ in range(8)]
            child.kill()
            assert all(one.result() for one in waiting) and child.returncode == -signal.SIGKILL
            child.close()
