"""The supervisor of the capture process: starts it, listens to it, starts it again after what can pass."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from penstock.engine.deadline import EXPIRED
from penstock.engine.lease import HeldLease
from penstock.engine.nursery import LEASE_FILE, Child, Nursery, shared
from penstock.errors import PenstockError, SourceFailed, SourceRefused, from_data
from penstock.sources.base import Prepared, Source

_log = structlog.get_logger()

PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
REFUSALS = 10
"""How often a refused login is tried with a secret read anew before an operator is asked for."""
BIRTHS = 3
"""How many children may die before their first word until that is an error."""
STEADY = 30.0
"""Seconds after which a run counts as a success and the pauses begin anew."""


class CaptureSupervisor(threading.Thread):
    """Keeps one capture running; `error` is set when it cannot be kept running without an operator."""

    def __init__(
        self,
        source: Source,
        kind: str,
        journal: Path,
        appended: Callable[[], None],
        fresh: Callable[[], Any] | None = None,
        lease: HeldLease | None = None,
        nursery: Nursery = shared,
    ) -> None:
        """`fresh` reads the source's options again where they hold references to secrets; the child ends with the `lease`."""
        super().__init__(name="capture", daemon=True)
        self._fresh, self._lease, self._nursery = fresh, lease, nursery
        self._let_go_for: PenstockError | None = None
        self._refusals = 0
        self._source, self._kind, self._journal = source, kind, journal
        self._appended = appended
        self._lock = threading.Lock()
        self._process: Child | None = None
        self._confirmed = 0
        self._holding = False
        self._stopping = threading.Event()
        self._exit_code: int | None = None
        self.journal_mark = 0
        """Up to where the journal is durable and complete."""
        self.told = 0
        """What the server has been told."""
        self.error: PenstockError | None = None
        """Why capture has ended for good."""

    @property
    def process_id(self) -> int:
        """The child's process, 0 when there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def prepare(self, *, export: bool = False) -> tuple[Prepared, bool, int]:
        """Starts the child up to the point where it has mended the journal, and prepares the source to fit.

        With `export` a source whose journal is new keeps the moment at which it begins readable. Returns what the source said,
        whether the journal is new, and up to where it is complete.
        """
        opened = self._open()
        new, mark = bool(opened["new"]), int(opened["mark"])
        return self._source.prepare(None if new else mark, export=export and new), new, mark

    def begin(self, prepared: Prepared) -> None:
        """Lets the child copy, and keeps it copying from now on."""
        self._say({"begin": prepared.start, "recipe": self._source.recipe()})
        self._resume_talk()
        self.start()

    def confirm(self, position: int) -> None:
        """Lets the server be told the position; only ever grows."""
        if position > self._confirmed:
            self._confirmed = position
            self._say({"confirm": position})

    def probe(self) -> None:
        """Asks for a fresh mark of where the log stands."""
        self._say({"probe": 1})

    def hold(self, held: bool) -> None:
        """Lets the child read no more of the source's log, or go on."""
        if held != self._holding:
            self._holding = held
            self._say({"hold": held})

    def stop(self, seconds: float = 5.0) -> None:
        """Ends the child in order, else by force."""
        self._stopping.set()
        self._say({"stop": 1})
        process = self._process
        if process is not None and not process.wait(seconds):
            process.kill()
            process.wait(seconds)
        if self.is_alive():
            self.join(seconds)
        else:
            self._end_process()

    def run(self) -> None:
        """The thread's body: hears the child, and starts a new one when it ends."""
        failures = 0
        while True:
            began = time.monotonic()
            self._let_go_for = None
            error = self._hear()
            if self._stopping.is_set():
                return
            failures = 0 if time.monotonic() - began > STEADY else failures
            error = error or self._let_go_for or SourceFailed(_silent_end(self._exit_code))
            while not self._stopping.is_set():
                if not self._may_pass(error):
                    self.error = error
                    _log.error("capture failed", code=error.code, reason=error.message, remedy=error.remedy)
                    self._appended()
                    return
                pause = PAUSES[min(failures, len(PAUSES) - 1)]
                failures += 1
                _log.warning(
                    "capture lost, trying again", code=error.code, reason=error.message, remedy=error.remedy, seconds=pause
                )
                if self._stopping.wait(pause):
                    return
                try:
                    # A connection that is kept may be as dead as the one that was lost, and take longer to tell.
                    self._source.close()
                    prepared, _, _ = self.prepare()
                    self._refusals = 0
                    _log.info("capture goes on", **prepared.facts)
                    self._say({"begin": prepared.start, "recipe": self._source.recipe()})
                    self._resume_talk()
                    break
                except PenstockError as failure:
                    error = failure
                except Exception as failure:
                    error = SourceFailed(f"capture could not be started: {type(failure).__name__}: {failure}")
            if self._stopping.is_set():
                self._end_process()
                return

    def let_go(self, error: PenstockError) -> None:
        """Ends the connection of the running capture, because of that error; it is made again as after any loss."""
        with self._lock:
            if self._process is not None:
                self._let_go_for = error
                self._process.kill()

    def _may_pass(self, error: PenstockError) -> bool:
        """Whether another try makes sense; a refused login does while the secret is being changed at both ends."""
        if not isinstance(error, SourceRefused):
            return error.retry == "timed"
        self._refusals += 1
        return self._refusals <= REFUSALS and self._source.renew(self._fresh() if self._fresh is not None else None)

    def _open(self) -> dict[str, Any]:
        """A child that has mended the journal; one that dies before its first word is followed by another, a few times."""
        for _ in range(BIRTHS):
            message = self._begin_process()
            if message is None:
                continue
            if "error" in message:
                raise from_data(message["error"])
            opened: dict[str, Any] = message["opened"]
            if opened["cut"]:
                _log.info("journal tail cut off", bytes=opened["cut"])
            return opened
        raise SourceFailed("the capture process did not start")

    def _begin_process(self) -> dict[str, Any] | None:
        """Starts a child; returns its first word, None when it died without one."""
        self._end_process()
        if self._lease is not None:
            self._lease.check()
        page = self._lease.page.file if self._lease is not None else None
        process = self._nursery.bear(self._kind, page)
        with self._lock:
            self._process = process
        surroundings = {"environment": dict(os.environ), "directory": os.getcwd()}
        lease = LEASE_FILE if page is not None else None
        self._say({"source": self._kind, "journal": str(self._journal), "lease": lease, **surroundings})
        return self._next()

    def _resume_talk(self) -> None:
        """What a new child must know beside its order."""
        self._say({"confirm": self._confirmed})
        if self._holding:
            self._say({"hold": True})

    def _hear(self) -> PenstockError | None:
        """Follows one child to its end; returns why it ended, if it said."""
        error = None
        while (message := self._next()) is not None:
            if "appended" in message:
                self.journal_mark = max(self.journal_mark, int(message["appended"]))
                self._appended()
            elif "told" in message:
                self.told = max(self.told, int(message["told"]))
            elif "error" in message:
                error = from_data(message["error"])
        self._end_process()
        return error

    def _next(self) -> dict[str, Any] | None:
        assert self._process is not None
        line = self._process.stdout.readline()
        found: dict[str, Any] | None = msgspec.json.decode(line) if line else None
        return found

    def _say(self, message: dict[str, Any]) -> None:
        with self._lock:
            process = self._process
            if process is None:
                return
            try:
                process.stdin.write(msgspec.json.encode(message) + b"\n")
                process.stdin.flush()
            except (BrokenPipeError, ValueError):
                # The child is ending; the thread that hears it knows why.
                return

    def _end_process(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        if not process.wait(5):
            process.kill()
            process.wait(5)
        self._exit_code = process.returncode
        process.close()


def give_up_place(source: Source) -> None:
    """Lets the server keep nothing more for the flow, which has failed for good; says so, or why it could not be done."""
    try:
        gone = source.release()
    except PenstockError as error:
        _log.error("the flow's place in the source's log could not be given up", code=error.code, reason=error.message)
        return
    if gone is not None:
        _log.error(
            "the flow's place in the source's log was given up",
            gone=gone,
            reason="failure_mode: drop_slot",
            remedy="What committed since is not in the journal: `penstock flow cleanup FILE --remove-state`, and begin anew.",
        )


def _silent_end(code: int | None) -> str:
    if code == EXPIRED:
        return "the capture process ended because this worker gave no sign of life for longer than its lease lasts"
    return f"the capture process ended without a word (exit code {code})"
