"""A real HTTP/1.1 server for tests: it records what arrives, and answers or misbehaves as a test tells it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

Reply = bytes | Iterable[bytes] | None
"""Bytes to send, any number of pieces (after which the connection is closed), or None to close without an answer."""


@dataclass(frozen=True)
class Arrived:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The changes in the body, whichever way it carries them."""
        if self.headers["content-type"] == "application/x-ndjson":
            return [msgspec.json.decode(line) for line in self.body.splitlines()]
        found = msgspec.json.decode(self.body)
        return found if isinstance(found, list) else [found]


def reply(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    """A complete answer."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    length = "" if status == 204 else f"content-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status} x\r\n{length}{more}\r\n".encode() + body


@dataclass
class Receiver:
    """Listens on a port of its own; a thread per connection asks `answer` for the reply to each request."""

    answer: Callable[[Arrived], Reply] = lambda arrived: reply()
    tls: ssl.SSLContext | None = None
    arrived: list[Arrived] = field(default_factory=list)
    """Every request, in the order in which it was complete."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/changes"

    @property
    def connections(self) -> int:
        """How many connections have been made."""
        return len(self._open)

    @property
    def keys(self) -> list[str]:
        """The idempotency keys, as they arrived."""
        return [request.headers["idempotency-key"] for request in self.arrived]

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The changes, as they arrived."""
        return [change for request in self.arrived for change in request.changes]

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server and every connection."""
        self._closed = True
        for one in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def hang_up(self) -> None:
        """Closes the connections that there are; the server goes on."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection, len(self._open)), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as stream:
                while (request := _read(stream, number)) is not None:
                    with self._lock:
                        self.arrived.append(request)
                    answered = self.answer(request)
                    if not isinstance(answered, bytes):
                        for piece in answered or ():
                            connection.sendall(piece)
                        return
                    connection.sendall(answered)


def _read(stream: Any, number: int) -> Arrived | None:
    words = stream.readline().decode("latin-1").split(" ")
    if len(words) != 3:
        return None
    method, path, _ = words
    headers: dict[str, str] = {}
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    body = stream.read(length)
    return Arrived(method, path, headers, body, number) if len(body) == length else None
