"""A network in a box: a proxy between penstock and its server whose wires can be cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Passes bytes both ways; `stall` makes it swallow nothing and pass nothing, as a network does that drops packets."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._passing = threading.Event()
        self._passing.set()
        self._done = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done = True
        self._passing.set()
        self.drop()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def stall(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._passing.clear()

    def flow(self) -> None:
        """Bytes pass again."""
        self._passing.set()

    def drop(self) -> None:
        """Ends every connection that there is."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._done:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._pairs.append((near, far))
            thread = threading.Thread(target=self._pump, args=(near, far), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far, contextlib.suppress(OSError):
            while not self._done:
                self._passing.wait()
                for end in select.select([near, far], [], [], 0.1)[0]:
                    data = end.recv(65536)
                    self._passing.wait()
                    if not data:
                        return
                    other[end].sendall(data)
