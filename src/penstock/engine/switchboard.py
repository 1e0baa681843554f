"""The switchboard: where lanes call in, and the driver's end of each lane's connection."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from penstock.engine.messages import receive

PREFIX = "penstock-lanes-"
OLD = 3600.0
"""Seconds after which a directory may be one that a killed worker has left."""

Called = Callable[[int, Connection, dict[str, Any]], None]


class Switchboard:
    """Listens on a unix socket that only this user can reach, with a secret per run; hands each caller to its job."""

    def __init__(self) -> None:
        # A socket's path may have 107 bytes, so it cannot lie in the state directory.
        _sweep()
        self._directory = tempfile.mkdtemp(prefix=PREFIX)
        self.address = os.path.join(self._directory, "lanes")
        self.secret = secrets.token_bytes(32)
        self._listener = Listener(self.address, "AF_UNIX", backlog=128, authkey=self.secret)
        self._jobs: dict[str, Called] = {}
        self._closed = False
        threading.Thread(target=self._accept, name="switchboard", daemon=True).start()

    def expect(self, job: str, called: Called) -> None:
        """Lanes of `job` are handed to `called(lane, connection, hello)`, from the switchboard's thread."""
        self._jobs[job] = called

    def forget(self, job: str) -> None:
        """Lanes of `job` are hung up on from now on."""
        self._jobs.pop(job, None)

    def close(self) -> None:
        """Stops listening."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError):
                continue
            except OSError:
                # Closed by us, or out of descriptors for a moment: the loop's condition tells which.
                time.sleep(0.01)
                continue
            try:
                hello = receive(connection)
                self._jobs[hello["job"]](int(hello["lane"]), connection, hello)
            except (KeyError, EOFError, ConnectionError, ValueError):
                # A lane of a job that was given up: closing the connection ends it.
                connection.close()


def _sweep() -> None:
    """Removes what killed workers of this user have left: old directories in whose socket nobody listens."""
    for place in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            facts = place.lstat()
            if facts.st_uid == os.getuid() and time.time() - facts.st_mtime > OLD and not _listens(place / "lanes"):
                shutil.rmtree(place, ignore_errors=True)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True
