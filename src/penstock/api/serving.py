"""Serving: the application on a socket of its own thread, until it is asked to end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import uvicorn

from penstock.api.app import Runs, create_app
from penstock.api.limits import Room, Watchers
from penstock.api.settings import Settings
from penstock.control.service import Service
from penstock.errors import ListenRefused

READY = 30.0


class Serving:
    """A server that answers from `start` until `close`."""

    def __init__(
        self,
        service: Service,
        settings: Settings,
        runs: Runs = lambda: (None, None),
        watchers: Watchers | None = None,
        slow: Room | None = None,
    ) -> None:
        """ListenRefused when the address would let others in unguarded."""
        settings.check(tokens=service.people.need_tokens())
        self._socket = _bound(settings)
        self.settings = replace(settings, port=self._socket.getsockname()[1])
        """As it is: a port 0 has become the one that was free."""
        self._app = create_app(service, self.settings, runs, watchers, slow)
        config: dict[str, Any] = {
            "log_config": None,
            "access_log": False,
            "lifespan": "off",
            "server_header": False,
            "log_level": "warning",
        }
        if settings.certificate is not None:
            config |= {"ssl_certfile": str(settings.certificate), "ssl_keyfile": str(settings.key)}
        config |= {"timeout_keep_alive": 10, "limit_concurrency": 512, "h11_max_incomplete_event_size": 64 << 10}
        self._server = _QuietServer(uvicorn.Config(self._app, **config, timeout_graceful_shutdown=5))
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        self._error: BaseException | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.settings.url

    def start(self) -> None:
        """Returns when it answers. ListenRefused."""
        self._thread.start()
        deadline = time.monotonic() + READY
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise ListenRefused(f"the server did not start: {self._error}", remedy="Check address and certificate.")
            time.sleep(0.01)

    def close(self) -> None:
        """Ends it in order: requests under way are answered, those that watch are ended."""
        self._app.state.watchers.closing = True
        self._server.end()
        if self._thread.is_alive():
            self._thread.join(15)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            self._error = error


class _QuietServer(uvicorn.Server):
    """Looks at the clock once a second, for the date in its answers, and not ten times: idle, that was a third of its work."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Has it end in order; from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                # A loop that is closed has ended.
                self._loop.call_soon_threadsafe(self._ending.set)

    async def main_loop(self) -> None:
        """Until it is to end."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), 1.0)


def _bound(settings: Settings) -> socket.socket:
    made: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        return made
    except OSError as error:
        if made is not None:
            made.close()
        reason = (error.strerror or str(error)).lower()
        raise ListenRefused(
            f"cannot listen on {settings.host}:{settings.port}: {reason}",
            remedy="Choose another address with --listen, or stop what listens there.",
        ) from error
