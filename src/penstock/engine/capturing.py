"""The capture child process: makes a source's capture from plain data and lets it run. Forked by the cradle, or
`python -m penstock.engine.capturing`.

Lines of JSON on stdin and stdout. The worker says the setup first, then `begin`, `confirm`, `probe`, `hold`, `stop`; the
child says `opened`, `appended`, `told`, `error`. The end of stdin is the end of the worker, and of the child. So is the end of
the worker's lease, which a worker that is stopped does not see: the journal and the slot are then its successor's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core import connectors
from penstock.engine.deadline import EXPIRED, Deadline
from penstock.errors import PenstockError, SourceFailed
from penstock.journal.writer import JournalWriter
from penstock.observe import failpoints
from penstock.sources.base import Capture, Link

MARGIN = 1.0
"""Seconds before the lease's end at which the child ends, so that its successor finds journal and slot free."""


class PipeLink(Link):
    """The worker at the other end of two pipes."""

    def __init__(self) -> None:
        self._confirmed = 0
        self._probes = 0
        self._stopping = False
        self._held = False
        self._call: Callable[[], None] = lambda: None
        self._output = os.fdopen(os.dup(1), "wb", buffering=0)
        # Whatever a library prints must not be taken for a message.
        os.dup2(2, 1)

    @property
    def confirmed(self) -> int:
        """The position that the server may be told."""
        return self._confirmed

    @property
    def stopping(self) -> bool:
        """Whether the worker has asked for an orderly end, or is gone."""
        return self._stopping

    @property
    def probes(self) -> int:
        """How many times the worker has asked where the log stands."""
        return self._probes

    @property
    def held(self) -> bool:
        """Whether the journal is full."""
        return self._held

    def on_confirmed(self, call: Callable[[], None]) -> None:
        """Has `call` called whenever `confirmed` has grown."""
        self._call = call

    def appended(self, mark: int) -> None:
        """Tells the worker that the journal has grown, and up to where it is complete."""
        self.say({"appended": mark})

    def told(self, position: int) -> None:
        """Tells the worker what the server has been told."""
        self.say({"told": position})

    def say(self, message: dict[str, Any]) -> None:
        """One line to the worker; a worker that is gone is no error here, its end of our stdin tells."""
        try:
            self._output.write(msgspec.json.encode(message) + b"\n")
        except BrokenPipeError:
            self._stopping = True

    def listen(self) -> None:
        """The thread that hears the worker."""
        for line in sys.stdin.buffer:
            message = msgspec.json.decode(line)
            if "confirm" in message:
                self._confirmed = max(self._confirmed, int(message["confirm"]))
                self._call()
            elif "probe" in message:
                self._probes += 1
            elif "hold" in message:
                self._held = bool(message["hold"])
            elif "stop" in message:
                self._stopping = True
        self._stopping = True


def main() -> None:
    """The child's life."""
    # Ctrl-C reaches the whole group; the worker decides when capture ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = PipeLink()
    try:
        _run(link)
    except PenstockError as error:
        link.say({"error": error.to_data()})
        os._exit(1)
    except Exception as error:
        link.say({"error": SourceFailed(f"capture failed: {type(error).__name__}: {error}").to_data()})
        raise
    # Threads may still wait for a server that is gone; everything that matters is durable.
    os._exit(0)


def _run(link: PipeLink) -> None:
    setup = msgspec.json.decode(sys.stdin.buffer.readline() or b"null")
    if setup is None:
        return
    if "environment" in setup:
        settle(setup["environment"], setup["directory"])
    if setup.get("lease") is not None:
        threading.Thread(target=_end_with, args=(Deadline(setup["lease"]),), name="lease", daemon=True).start()
    # Loaded first: once the source is prepared, nothing should stand between it and the copying.
    make = connectors.find("source", setup["source"]).load("capture")
    make.warm()
    journal = JournalWriter(Path(setup["journal"]))
    link.say({"opened": {"new": journal.is_new, "mark": journal.mark, "cut": journal.cut}})
    order = _order()
    if order is None:
        return
    if journal.is_new:
        journal.begin(int(order["begin"]))
        link.appended(journal.mark)
    threading.Thread(target=link.listen, name="listener", daemon=True).start()
    capture: Capture = make(order["recipe"])
    capture.run(journal, link)
    journal.close()


def settle(environment: dict[str, str], directory: str) -> None:
    """Has the process where its worker is: its parent may have been started long before, somewhere else."""
    os.environ.clear()
    os.environ.update(environment)
    failpoints.arm(os.environ.get("PENSTOCK_FAILPOINT", ""))
    with contextlib.suppress(OSError):
        os.chdir(directory)


def _end_with(deadline: Deadline) -> None:
    """Ends the process before the lease does: at once, because what is durable is whole and the rest will be cut off."""
    while (left := deadline.seconds_left() - MARGIN) > 0:
        time.sleep(min(left, 0.5))
    os._exit(EXPIRED)


def _order() -> dict[str, Any] | None:
    """The worker's word to begin; what other threads of it say meanwhile is said again after it."""
    for line in sys.stdin.buffer:
        message: dict[str, Any] = msgspec.json.decode(line)
        if "begin" in message:
            return message
    return None


if __name__ == "__main__":
    main()
