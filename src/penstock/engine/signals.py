"""What others have told a destination's loop: there is news, be still, end."""

from __future__ import annotations

import threading

IDLE_WAIT = 1.0
"""Seconds without news after which a loop looks around by itself."""


class Signals:
    """Set by any thread, obeyed by the loop's own."""

    def __init__(self) -> None:
        self._news = threading.Event()
        self._halt = threading.Event()
        self._interrupted = threading.Event()
        self.paused = False

    def notice(self) -> None:
        """There may be something to do."""
        self._news.set()

    def stop(self) -> None:
        """The loop is to end."""
        self._halt.set()
        self._interrupted.set()
        self._news.set()

    def pause(self) -> None:
        """The loop is to stand still."""
        self.paused = True
        self._interrupted.set()
        self._news.set()

    def resume(self) -> None:
        """The loop may go on, unless it is to end."""
        self.paused = False
        if not self._halt.is_set():
            self._interrupted.clear()
        self._news.set()

    @property
    def stopped(self) -> bool:
        """Whether the loop is to end."""
        return self._halt.is_set()

    @property
    def interrupted(self) -> bool:
        """Whether nothing new may begin."""
        return self._interrupted.is_set()

    def wait(self, seconds: float = IDLE_WAIT) -> None:
        """Until there is news, or for so long."""
        self._news.wait(seconds)
        self._news.clear()

    def wait_undisturbed(self, seconds: float) -> None:
        """For so long, whatever the news, unless nothing new may begin."""
        self._interrupted.wait(seconds)
