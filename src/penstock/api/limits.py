"""Limits: no request is larger than a definition can be, and no more of them stay open than the server can hold."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.problems import answer
from penstock.errors import RequestRefused, TooManyRequests

MOST_BYTES = 1 << 20
PATIENCE = 8
"""How many times too large a body may be to be read to its end before it is refused."""


@dataclass
class Watchers:
    """How many requests stay open to watch, over whatever protocol, and whether they are to end."""

    most: int
    closing: bool = False
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """TooManyRequests when there is no room for one more."""
        if self._count >= self.most:
            raise TooManyRequests(f"{self._count} requests watch already")

    def join(self) -> None:
        """One more watches."""
        with self._lock:
            self._count += 1

    def leave(self) -> None:
        """One has ended."""
        with self._lock:
            self._count -= 1


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
