"""The lanes of one destination, as the driver sees them: a Spark job that stands, descriptors out, receipts in.

A lane that dies is started again by Spark as the task's next attempt and is given its descriptor anew; one that does not
answer is cancelled with its job; a job that ends is submitted again. A receipt counts only if it answers the last asking.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import structlog

from penstock.engine.lane import run_lane
from penstock.engine.messages import receive, send
from penstock.engine.session import SparkHost
from penstock.engine.switchboard import Switchboard
from penstock.errors import LaneLost, LaneSilent, PenstockError, SparkFailed, from_data
from penstock.observe.failpoints import reach

_log = structlog.get_logger()

SILENCE = 120.0
"""Seconds without a sign of life after which a lane is given up."""
ARRIVAL = 120.0
"""Seconds that a new job's lanes may take to call in; a cold JVM on a busy machine takes ten."""
LOSSES = 20
"""How often lanes may be lost in one epoch before the destination's retry rules decide."""


class Lanes:
    """Runs descriptors on `count` standing Spark tasks; used by one thread."""

    def __init__(self, host: SparkHost, board: Switchboard, group: str, setup: dict[str, Any], count: int) -> None:
        self._host = host
        self._board = board
        self._group = group
        self._setup = setup
        self._count = count
        self._asks = itertools.count(1)
        self._jobs = itertools.count(1)
        self._job = ""
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._arrived = threading.Condition()
        self._connections: dict[int, Connection] = {}
        self._stopping = False

    def run(self, descriptors: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The receipts of the descriptors, in order; each descriptor goes to the lane of its place in the list."""
        receipts: dict[int, dict[str, Any]] = {}
        asked: dict[int, tuple[int, float]] = {}
        losses = 0
        while len(receipts) < len(descriptors):
            self._check_stopping()
            for lane in range(len(descriptors)):
                if lane not in receipts and lane not in asked:
                    try:
                        asked[lane] = (self._ask(lane, descriptors[lane]), time.monotonic())
                    except (EOFError, ConnectionError):
                        losses += self._lose(lane)
            reach("engine.after_dispatch")
            for lane, message in self._replies(asked):
                if message is None:
                    losses += self._lose(lane)
                    asked.pop(lane, None)
                elif message["ask"] != asked[lane][0]:
                    continue
                elif "progress" in message:
                    asked[lane] = (asked[lane][0], time.monotonic())
                elif "error" in message:
                    raise from_data(message["error"])
                else:
                    receipts[lane] = message["receipt"]
                    del asked[lane]
            if losses > LOSSES:
                raise LaneLost(f"lanes of {self._group} were lost {losses} times in one epoch")
            self._check_silence(asked)
        return [receipts[lane] for lane in range(len(descriptors))]

    def interrupt(self) -> None:
        """Makes a `run` in another thread end soon, with LaneLost; no more descriptors are taken."""
        self._stopping = True
        with self._arrived:
            self._arrived.notify_all()

    def close(self) -> None:
        """Ends the lanes and waits for the job."""
        self._stopping = True
        self._hang_up()
        if self._thread is not None:
            self._thread.join(5)
            if self._thread.is_alive():
                self._cancel()

    def _check_stopping(self) -> None:
        if self._stopping:
            raise LaneLost(f"lanes of {self._group} are being stopped")

    def _ask(self, lane: int, descriptor: dict[str, Any]) -> int:
        connection = self._connection(lane)
        ask = next(self._asks)
        send(connection, {**descriptor, "ask": ask})
        return ask

    def _connection(self, lane: int) -> Connection:
        deadline = time.monotonic() + ARRIVAL
        while True:
            self._ensure_job()
            with self._arrived:
                found = self._connections.get(lane)
                if found is not None:
                    return found
                self._arrived.wait(0.5)
            self._check_stopping()
            if time.monotonic() > deadline:
                self._cancel()
                raise LaneSilent(f"lane {lane} of {self._group} did not call in within {ARRIVAL:.0f} s")

    def _replies(self, asked: dict[int, tuple[int, float]]) -> list[tuple[int, dict[str, Any] | None]]:
        with self._arrived:
            lanes = {self._connections[lane]: lane for lane in asked if lane in self._connections}
        lost = [(lane, None) for lane in asked if lane not in lanes.values()]
        found: list[tuple[int, dict[str, Any] | None]] = list(lost)
        for ready in wait(list(lanes), timeout=0 if lost else 0.5):
            assert isinstance(ready, Connection)
            try:
                found.append((lanes[ready], receive(ready)))
            except (EOFError, OSError):
                found.append((lanes[ready], None))
        return found

    def _lose(self, lane: int) -> int:
        with self._arrived:
            gone = self._connections.pop(lane, None)
        if gone is not None:
            gone.close()
        _log.warning("lane lost", destination=self._group, lane=lane)
        return 1

    def _check_silence(self, asked: dict[int, tuple[int, float]]) -> None:
        silent = [lane for lane, (_, since) in asked.items() if time.monotonic() - since > SILENCE]
        if silent:
            self._cancel()
            raise LaneSilent(f"lane {silent[0]} of {self._group} gave no sign of life for {SILENCE:.0f} s")

    def _ensure_job(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        if self._failure is not None:
            _log.warning("lane job ended", destination=self._group, reason=self._failure)
            time.sleep(0.2)
        self._hang_up()
        self._failure = None
        self._job = f"{self._group}#{next(self._jobs)}"
        self._board.expect(self._job, self._called)
        try:
            context = self._host.context()
        except PenstockError:
            raise
        except Exception as error:
            raise SparkFailed(f"Spark did not start: {error}") from error
        self._thread = threading.Thread(target=self._stand, args=(context, self._job), name=self._job, daemon=True)
        self._thread.start()

    def _stand(self, context: Any, job: str) -> None:
        """The Spark job: it returns when its lanes do."""
        assignment = {"address": self._board.address, "secret": self._board.secret, "job": job}
        try:
            context.setJobGroup(self._group, f"lanes of {self._group}", interruptOnCancel=True)
            context.parallelize(range(self._count), self._count).mapPartitions(partial(run_lane, assignment)).collect()
            self._failure = "its lanes have ended"
        except Exception as error:
            self._failure = str(error).partition("\n")[0][:200]
        finally:
            with self._arrived:
                self._arrived.notify_all()

    def _called(self, lane: int, connection: Connection, hello: dict[str, Any]) -> None:
        if hello["job"] != self._job or self._stopping:
            connection.close()
            return
        send(connection, self._setup)
        with self._arrived:
            former = self._connections.pop(lane, None)
            self._connections[lane] = connection
            self._arrived.notify_all()
        if former is not None:
            former.close()

    def _hang_up(self) -> None:
        if self._job:
            self._board.forget(self._job)
        with self._arrived:
            gone, self._connections = list(self._connections.values()), {}
        for connection in gone:
            connection.close()

    def _cancel(self) -> None:
        self._hang_up()
        thread = self._thread
        if thread is None or not thread.is_alive() or not self._host.alive():
            return
        self._host.context().cancelJobGroup(self._group)
        thread.join(10)
