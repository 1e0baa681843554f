"""Limits: no request is larger than a definition can be, and no more of them stay open than the server can hold."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.access import Asking
from penstock.api.problems import answer
from penstock.errors import RequestRefused, TooManyRequests

MOST_BYTES = 1 << 20
MOST_SLOW = 24
"""How many requests may wait for workers or sources at once, over whatever protocol: REST has 40 threads, gRPC 32 besides those
that watch."""
PATIENCE = 8
"""How many times too large a body may be to be read to its end before it is refused."""


@dataclass
class Room:
    """Room for so many requests at once that take long; for any thread."""

    most: int
    doing: ClassVar[str] = "wait"
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """One place for the block; TooManyRequests when there is none."""
        with self._lock:
            if self._count >= self.most:
                raise TooManyRequests(f"{self._count} requests {self.doing} already")
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1


@dataclass
class Watchers(Room):
    """How many requests stay open to watch, over whatever protocol, and whether they are to end."""

    doing = "watch"
    closing: bool = False


# Both know the caller first: who may not ask at all takes nobody's place.
async def slow(request: Request, _caller: Asking) -> AsyncIterator[None]:
    """For a route that asks a source, scans a journal or waits for a worker: it keeps a thread as long, others need one too."""
    with request.app.state.slow.taken():
        yield


async def waiting(request: Request, _caller: Asking) -> AsyncIterator[None]:
    """For a route that waits only when it is told to."""
    if not request.query_params.get("wait", "").strip("0."):
        yield
        return
    with request.app.state.slow.taken():
        yield


class BodyLimit:
    """Refuses a body that is too large, whatever it says that it is."""

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        chunks: list[bytes] = []
        read, more = 0, True
        # Read whole before anything else sees it: a refusal in the middle of a handler would be somebody's surprise.
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body: bytes = message.get("body", b"")
            read += len(body)
            more = message.get("more_body", False)
            # What is a little too large is read and let go: who is hung up on while sending never sees the answer.
            if read > self._most:
                chunks.clear()
                if not more or read > PATIENCE * self._most:
                    await self._refuse(scope, receive, send)
                    return
            else:
                chunks.append(body)
        whole: list[Message] = [{"type": "http.request", "body": b"".join(chunks), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replay, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = RequestRefused(f"the request is larger than {self._most >> 10} KiB")
        await answer(refused, 413, {"connection": "close"})(scope, receive, send)
