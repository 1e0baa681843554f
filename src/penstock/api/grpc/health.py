"""The standard health service of gRPC: NOT_SERVING also while the ledger does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from grpc_health.v1 import health, health_pb2

from penstock.api.grpc import failures
from penstock.api.limits import Room, Watchers
from penstock.control.service import Service
from penstock.errors import LedgerError, TooManyRequests

MOST_HEALTH = 8
"""How many may watch it at once. They need no token, so they must not take anybody else's place."""
LOOK = 1.0


class Health(health.HealthServicer):  # type: ignore[misc]
    """Needs no token and tells nothing that would need one."""

    def __init__(self, service: Service, watchers: Watchers) -> None:
        """Those who watch are ended when `watchers` are."""
        super().__init__(experimental_non_blocking=False)
        self._service, self._watchers, self._room = service, watchers, Room(MOST_HEALTH)

    def Check(self, request: Any, context: Any) -> Any:
        """Whether the server can do its work."""
        answer = super().Check(request, context)
        return answer if self._is_there() else _said(health_pb2.HealthCheckResponse.NOT_SERVING)

    def Watch(self, request: Any, context: Any, send_response_callback: Any = None) -> Iterator[Any]:
        """The same, now and whenever it changes."""
        try:
            with self._room.taken():
                before: int | None = None
                while context.is_active() and not self._watchers.closing:
                    with self._lock:
                        status = self._server_status.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
                    if status == health_pb2.HealthCheckResponse.SERVING and not self._is_there():
                        status = health_pb2.HealthCheckResponse.NOT_SERVING
                    if status != before:
                        before = status
                        yield _said(status)
                    time.sleep(LOOK)
        except TooManyRequests as error:
            context.abort_with_status(failures.status(error))

    def _is_there(self) -> bool:
        try:
            self._service.premises.ledger.lifecycle.newest()
        except LedgerError:
            return False
        return True


def _said(status: int) -> Any:
    return health_pb2.HealthCheckResponse(status=status)
