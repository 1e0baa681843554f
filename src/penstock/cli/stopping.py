"""Signals that end a run: the first asks for an orderly stop, the second ends the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130


@contextmanager
def stopping(ask: Callable[[], None]) -> Iterator[None]:
    """Calls `ask` at the first SIGINT or SIGTERM; at the second the process ends at once.

    Servers and lanes that this process started end with it, because each is under guard.
    """
    asked = threading.Event()

    def react(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(INTERRUPTED)
        asked.set()
        ask()

    before = {number: signal.signal(number, react) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Running:
    """A function on a thread of its own, so that the main thread stays free for signals; its error is raised by `wait`."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._work = work
        # A signal's handler runs in the main thread between two of its instructions: were the work done there, the handler
        # could wait for a lock that the work it interrupted holds.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the function has returned or failed."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether the function has ended, at the latest after the time; raises what it raised."""
        if seconds is None:
            while self._thread.is_alive():
                self._thread.join(1.0)
        else:
            self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
