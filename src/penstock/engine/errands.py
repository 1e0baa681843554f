"""Errands: what another thread wants of a destination, done by its loop's own thread between two epochs."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Errands:
    """A destination is never called from two threads at once; this is how a second one gets its turn."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def ask(self, act: Callable[[], Any]) -> Future[Any]:
        """Has something done soon; from any thread. Never done when the loop has ended."""
        future: Future[Any] = Future()
        self._waiting.put((act, future))
        self._wake()
        return future

    def run(self) -> None:
        """Does what was asked for; for the loop's thread. An errand's error belongs to whoever has asked."""
        while not self._waiting.empty():
            act, future = self._waiting.get()
            try:
                future.set_result(act())
            except Exception as error:
                future.set_exception(error)
