"""The lanes of one destination, as the driver sees them: a Spark job that stands, descriptors out, receipts in.

A lane that dies is started again by Spark as the task's next attempt and is given its descriptor anew; one that does not
answer is cancelled with its job; a job that ends is submitted again. A receipt counts only if it answers the last asking.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
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
PARTING = 5.0
"""Seconds that lanes without work have to end by themselves, also such as only call in."""


@dataclass
class _Asked:
    """One descriptor that a lane has: the asking's number, who was asked, and when it last gave a sign of life."""

    ask: int
    connection: Connection
    since: float


@dataclass
class _Asking:
    """What the lanes have been asked to do, and what they have answered."""

    descriptors: list[dict[str, Any]]
    receipts: dict[int, dict[str, Any]] = field(default_factory=dict)
    asked: dict[int, _Asked] = field(default_factory=dict)
    losses: int = 0


def _readable(connections: dict[int, Connection], seconds: float) -> list[tuple[int, Connection]]:
    """Those of the lanes' connections that have something to read, or have ended; waits that long for the first."""
    # What `multiprocessing.connection.wait` does, without making a selector for every epoch.
    poll, lanes = select.poll(), {}
    for lane, connection in connections.items():
        if connection.closed:
            # Its successor has called in meanwhile.
            return [(lane, connection)]
        lanes[connection.fileno()] = (lane, connection)
        poll.register(connection.fileno(), select.POLLIN)
    return [lanes[number] for number, _ in poll.poll(seconds * 1000)]


class Lanes:
    """Runs descriptors on `count` standing Spark tasks; used by one thread."""

    def __init__(
        self,
        host: SparkHost,
        board: Switchboard,
        group: str,
        setup: dict[str, Any],
        count: int,
        deadline: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`deadline` says until when lanes may write, by `clock`; they are told with each descriptor and while they work."""
        self._deadline = deadline
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
        self.process_ids: dict[int, int] = {}
        """The process of each lane that has called in, for people and for tests."""
        self._closed = False
        self._interrupt_at = math.inf
        self._asking = _Asking([])

    def ask(self, descriptors: Sequence[dict[str, Any]]) -> None:
        """Hands the descriptors out, each to the lane of its place in the list; what was asked before is forgotten.

        Lanes that stand get theirs now, the others when `gather` waits for them.
        """
        # A lane that works on something that nobody wants any more might be sending while we do: Spark starts another.
        self.abandon()
        self._asking = _Asking(list(descriptors))
        with self._arrived:
            ready = [lane for lane in range(len(descriptors)) if lane in self._connections]
        for lane in ready:
            self._hand_out(lane)

    def gather(self) -> list[dict[str, Any]]:
        """The receipts of what was asked last, in order; starts again what is lost meanwhile."""
        asking = self._asking
        while len(asking.receipts) < len(asking.descriptors):
            self._check_stopping()
            for lane in range(len(asking.descriptors)):
                if lane not in asking.receipts and lane not in asking.asked:
                    self._connection(lane)
                    self._hand_out(lane)
            reach("engine.after_dispatch")
            for lane, message in self._replies(asking.asked):
                self._take(lane, message)
            if asking.losses > LOSSES:
                raise LaneLost(f"lanes of {self._group} were lost {asking.losses} times in one epoch")
            self._check_silence(asking.asked)
        return [asking.receipts[lane] for lane in range(len(asking.descriptors))]

    def begin(self) -> None:
        """Submits the job, so that lanes stand ready when the first descriptor comes; does not wait for them."""
        self._ensure_job()

    def are_ready(self) -> bool:
        """Whether every lane has called in."""
        with self._arrived:
            return len(self._connections) == self._count

    def interrupt(self, after: float = 0.0) -> None:
        """Makes a `gather` in another thread end soon after that many seconds, with LaneLost, until `resume` is called."""
        self._interrupt_at = time.monotonic() + after
        with self._arrived:
            self._arrived.notify_all()

    def abandon(self) -> None:
        """Forgets what was asked; lanes that work on it are hung up on, end as soon as they notice, and come again."""
        for lane, busy in self._asking.asked.items():
            self._lose(lane, busy.connection)
        self._asking = _Asking([])

    def resume(self) -> None:
        """Descriptors are taken again after an interruption."""
        self._interrupt_at = math.inf

    def close(self) -> None:
        """Ends the lanes and waits for the job; lanes that still work on something are not waited for."""
        self._closed = True
        busy = bool(self._asking.asked)
        with self._arrived:
            there, self._connections = list(self._connections.values()), {}
        for connection in there:
            with contextlib.suppress(OSError):
                send(connection, {"end": True})
            connection.close()
        if self._thread is not None:
            # Lanes that call in only now are told to end: hung up on, they would be started again and again.
            self._thread.join(0.1 if busy else PARTING)
            if self._thread.is_alive():
                self._cancel()
        self._hang_up()

    def _check_stopping(self) -> None:
        if self._closed or time.monotonic() >= self._interrupt_at:
            raise LaneLost(f"lanes of {self._group} are being stopped")

    def _hand_out(self, lane: int) -> None:
        ask = next(self._asks)
        connection = self._connections.get(lane)
        if connection is None:
            return
        try:
            send(connection, {**self._asking.descriptors[lane], "ask": ask, "deadline": self._deadline()})
        except (EOFError, OSError):
            self._lose(lane, connection)
        else:
            self._asking.asked[lane] = _Asked(ask, connection, time.monotonic())

    def _take(self, lane: int, message: dict[str, Any] | None) -> None:
        """One answer; an older asking's is passed over."""
        asking = self._asking
        asked = asking.asked[lane]
        if message is None:
            del asking.asked[lane]
            self._lose(lane, asked.connection)
        elif message["ask"] != asked.ask:
            return
        elif "progress" in message:
            asked.since = time.monotonic()
            with contextlib.suppress(OSError):
                send(asked.connection, {"deadline": self._deadline()})
        elif "error" in message:
            del asking.asked[lane]
            raise from_data(message["error"])
        else:
            asking.receipts[lane] = message["receipt"]
            del asking.asked[lane]

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

    def _replies(self, asked: dict[int, _Asked]) -> list[tuple[int, dict[str, Any] | None]]:
        """What lanes have said; None for one that is gone, also when its successor has already called in."""
        with self._arrived:
            gone = [lane for lane, a in asked.items() if self._connections.get(lane) is not a.connection]
        found: list[tuple[int, dict[str, Any] | None]] = [(lane, None) for lane in gone]
        for lane, connection in _readable(
            {lane: a.connection for lane, a in asked.items() if lane not in gone}, 0 if gone else 0.5
        ):
            try:
                found.append((lane, receive(connection)))
            except (EOFError, OSError):
                found.append((lane, None))
        return found

    def _lose(self, lane: int, connection: Connection) -> None:
        """Forgets a connection that is gone; a successor that has taken its place stays."""
        with self._arrived:
            if self._connections.get(lane) is connection:
                del self._connections[lane]
        connection.close()
        self._asking.losses += 1
        _log.warning("lane lost", destination=self._group, lane=lane)

    def _check_silence(self, asked: dict[int, _Asked]) -> None:
        silent = [lane for lane, a in asked.items() if time.monotonic() - a.since > SILENCE]
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
        if hello["job"] != self._job:
            connection.close()
            return
        send(connection, self._setup)
        with self._arrived:
            over, former = self._closed, self._connections.pop(lane, None)
            if not over:
                self._connections[lane] = connection
                self.process_ids[lane] = int(hello["pid"])
            self._arrived.notify_all()
        if former is not None:
            former.close()
        if over:
            send(connection, {"end": True})
            connection.close()

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
