"""The cradle: the parent of capture processes, which loads what they need once, so that every fork of it starts with that.

A capture that loads its libraries by itself takes a second to start, and its memory is all its own; a forked one takes
milliseconds and shares two thirds. On one machine Spark's daemon is forked from here too, so that lanes share the same. There is
one thread and no other work here, so that a fork is safe and an end is seen at once. `python -m penstock.engine.cradle`
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core import connectors
from penstock.embedded.memory import give_back
from penstock.engine import capturing
from penstock.engine.nursery import LEASE_FILE

IDLE = 60.0
"""Seconds without a child after which nothing is kept ready any more."""
_PDEATHSIG, _NAME = 1, 15


def main() -> None:
    """Takes orders until the worker is gone and every child has ended, or nobody has needed a child for long."""
    # Ctrl-C reaches the whole group; the worker decides when capture ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = os.getppid()
    control, door = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    with control, door:
        Cradle(control, door).run()
    if os.getppid() != worker:
        # It was killed, and cannot do it any more.
        shutil.rmtree(sys.argv[3], ignore_errors=True)


@dataclass(frozen=True)
class _Child:
    """A process that was forked."""

    pid: int
    tell: Callable[[bytes], object]
    """Says something to who has asked for it."""
    files: tuple[int, ...]
    """Ours because of it, closed when it has ended."""
    line: socket.socket | None = None
    """To the process that stands for it at Spark's."""


class Cradle:
    """Forks a child for each order, tells who has asked its process id and later its end."""

    def __init__(self, control: socket.socket, door: socket.socket) -> None:
        self._control, self._door = control, door
        self._children: dict[int, _Child] = {}
        """By the file that becomes readable when a child ends."""
        self._known: set[str] = set()
        self._poll = select.poll()

    def run(self) -> None:
        """The process's loop."""
        ordering = True
        for one in (self._control, self._door):
            self._poll.register(one, select.POLLIN)
        while ordering or self._children:
            ready = self._poll.poll(None if self._children else IDLE * 1000)
            if not ready:
                return
            # One at a time: what is done for it may close others that are ready, and their numbers be given anew.
            file = ready[0][0]
            if file in self._children:
                self._bury(file)
            elif file == self._door.fileno():
                self._answer_door()
            elif file == self._control.fileno():
                ordering = self._take_order()
            else:
                self._let_go(file)

    def _take_order(self) -> bool:
        """Makes a capture as the worker asks; false when there is no worker any more."""
        order, files, _, _ = socket.recv_fds(self._control, 1024, 4)
        if not order:
            self._poll.unregister(self._control)
            return False
        told = files.pop(0)
        self._load(order.decode())

        def live() -> None:
            _take_files(files[:2])
            if len(files) > 2 and files[2] != LEASE_FILE:
                os.dup2(files[2], LEASE_FILE)
                os.close(files[2])
            capturing.main()

        self._bear("capture", signal.SIGKILL, live, lambda word: os.write(told, word), files, (told,))
        return True

    def _answer_door(self) -> None:
        """Makes a daemon for Spark, in the place of the process that asks for it."""
        line, _ = self._door.accept()
        _, files, _, _ = socket.recv_fds(line, 64, 4)
        if len(files) != 4:
            line.close()
            return

        def live() -> None:
            with os.fdopen(os.dup(files[3]), "rb") as order:
                order.seek(0)
                around = json.load(order)
            line.close()
            _take_files(files)
            capturing.settle(around["environment"], around["directory"])
            sys.argv = around["arguments"]
            from penstock.engine import daemon

            daemon.serve()

        self._bear("daemon", signal.SIGTERM, live, line.send, files, (), line)
        self._poll.register(line, select.POLLIN)

    def _bear(
        self,
        name: str,
        dying: int,
        live: Callable[[], None],
        tell: Callable[[bytes], object],
        given: list[int],
        files: tuple[int, ...],
        line: socket.socket | None = None,
    ) -> None:
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            foreign = [self._control.detach(), self._door.detach(), *files]
            for file, child in self._children.items():
                foreign += [file, *child.files, *([child.line.detach()] if child.line is not None else [])]
            _be(parent, name, dying, foreign, live)
        for file in given:
            os.close(file)
        ended = os.pidfd_open(pid)
        self._children[ended] = child = _Child(pid, tell, files, line)
        self._poll.register(ended, select.POLLIN)
        with contextlib.suppress(OSError):
            child.tell(b"%d\n" % pid)

    def _bury(self, file: int) -> None:
        child = self._children.pop(file)
        self._poll.unregister(file)
        os.close(file)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        with contextlib.suppress(OSError):
            child.tell(b"%d\n" % code)
        for own in child.files:
            os.close(own)
        if child.line is not None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(child.line)
            child.line.close()

    def _let_go(self, file: int) -> None:
        """Who stood for a daemon at Spark's has ended: so does the daemon."""
        self._poll.unregister(file)
        for child in self._children.values():
            if child.line is not None and child.line.fileno() == file:
                os.kill(child.pid, signal.SIGTERM)

    def _load(self, kind: str) -> None:
        if kind in self._known:
            return
        self._known.add(kind)
        # The child does it again, finds it done, or meets the same error and tells the worker.
        with contextlib.suppress(Exception):
            connectors.find("source", kind).load("capture").warm()
        # What is alive now stays so: out of the collector's sight its pages stay shared.
        gc.collect()
        gc.freeze()
        give_back()


def _be(parent: int, name: str, dying: int, foreign: list[int], live: Callable[[], None]) -> None:
    """The child's life, from fork to end."""
    code: object = 1
    try:
        libc = ctypes.CDLL(None)
        # Nobody else could tell who has asked of this child's end.
        libc.prctl(_PDEATHSIG, dying)
        libc.prctl(_NAME, name.encode())
        if os.getppid() == parent:
            for file in foreign:
                os.close(file)
            live()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _take_files(files: list[int]) -> None:
    """Has them as stdin, stdout and so on."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)


if __name__ == "__main__":
    main()
