"""The nursery: where a worker gets its capture processes from; all workers of one process share one."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import BinaryIO, Self

import structlog

from penstock.embedded import memory
from penstock.embedded.cache import kernel_directory
from penstock.errors import SourceFailed

_log = structlog.get_logger()

LEASE_FILE = 3
"""The number under which a child finds its lease's page."""
TRIES = 3
"""How many cradles may be gone when a child is wanted: one that nobody needed has ended by itself."""

ENDING = 10.0
"""Seconds that a cradle has to end with its children."""


class Child:
    """A capture process with a pipe to it and one from it; safe to use from several threads."""

    def __init__(self, pid: int, stdin: BinaryIO, stdout: BinaryIO, told: int) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        """How it ended, negative for a signal; None while that is not known."""
        self._told = told
        self._lock = threading.Lock()
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self._handle = -1
        # With the last who knows the child: one thread may wait for its end while another has seen it.
        weakref.finalize(self, _close, told, self._handle)

    def poll(self) -> int | None:
        """The exit code, None while it lives."""
        return self._look(0)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after that long at most."""
        return self._look(seconds) is not None

    def kill(self) -> None:
        """Ends it at once; harmless when it has ended."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.returncode is None and self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """Gives back the pipes of a child that has ended."""
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    def _look(self, seconds: float) -> int | None:
        if self.returncode is None:
            end = select.poll()
            end.register(self._told, select.POLLIN)
            if end.poll(seconds * 1000):
                with self._lock:
                    if self.returncode is None:
                        # A cradle that was killed takes its children along, and can say nothing of it.
                        self.returncode = int(os.read(self._told, 64) or -signal.SIGKILL)
        return self.returncode


def _close(*files: int) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.close(file)


class Nursery:
    """Children of one cradle, which is started when the first is wanted, and again whenever it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._directory: str | None = None
        self._cradle: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bear(self, kind: str, lease: int | None) -> Child:
        """A new process that captures a `kind` of source, with the lease's page as a file of its own. SourceFailed."""
        with self._lock:
            for _ in range(TRIES):
                child = self._ask(kind, lease)
                if child is not None:
                    return child
                self._end()
        raise SourceFailed("the process that captures are made from did not start")

    def address(self) -> str:
        """Where Spark's daemon finds the cradle that is there now, or its successor; only this user can reach it."""
        with self._lock:
            self._running()
            assert self._directory is not None
            return os.path.join(self._directory, "door")

    def close(self) -> None:
        """Ends the cradle, and children that are still there."""
        with self._lock:
            self._end()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    def _ask(self, kind: str, lease: int | None) -> Child | None:
        control = self._running()
        own, foreign = [], []
        for mine, its in ((1, 0), (0, 1), (0, 1)):
            ends = os.pipe()
            own.append(ends[mine])
            foreign.append(ends[its])
        stdin, stdout, told = own
        pid = b""
        try:
            socket.send_fds(control, [kind.encode()], [foreign[2], *foreign[:2], *([] if lease is None else [lease])])
        except OSError:
            # It has ended meanwhile.
            pass
        finally:
            for file in foreign:
                os.close(file)
        # A child that is quick to end may have told of that as well: only the first line is read.
        while not pid.endswith(b"\n") and (got := os.read(told, 1)):
            pid += got
        if not pid:
            for file in own:
                os.close(file)
            return None
        return Child(int(pid), os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), told)

    def _running(self) -> socket.socket:
        if self._cradle is not None and self._cradle.poll() is not None:
            # Nobody had needed it for long.
            self._end()
        if self._control is None:
            self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            environment = {"NUMBA_CACHE_DIR": str(kernel_directory()), **os.environ}
            if not any(Path(environment["NUMBA_CACHE_DIR"]).rglob("*.nbi")):
                _log.info("kernels are compiled, once for this installation: changes arrive after half a minute or more")
            # Threads do not survive a fork, and a capture has no use for a pool of them.
            environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            environment = {**memory.SETTINGS, **environment}
            with its, self._opened() as door:
                self._cradle = subprocess.Popen(
                    [sys.executable, "-m", "penstock.engine.cradle", str(its.fileno()), str(door.fileno()), str(self._directory)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=(its.fileno(), door.fileno()),
                )
            atexit.register(self.close)
        return self._control

    def _opened(self) -> socket.socket:
        """What the cradle answers at; its own, so that nobody waits at the door of one that is gone."""
        # A socket's path may have 107 bytes.
        self._directory = self._directory or tempfile.mkdtemp(prefix="ps-")
        path = os.path.join(self._directory, "door")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door.bind(path)
        door.listen(8)
        return door

    def _end(self) -> None:
        if self._control is None or self._cradle is None:
            return
        atexit.unregister(self.close)
        self._control.close()
        try:
            self._cradle.wait(ENDING)
        except subprocess.TimeoutExpired:
            # Its children have not ended; without a worker they have nothing to do.
            self._cradle.kill()
            self._cradle.wait()
        self._control = self._cradle = None


shared = Nursery()
"""The nursery of this process."""
