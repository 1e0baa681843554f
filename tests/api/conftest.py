"""A server on sockets of its own, for REST and gRPC, over a fresh ledger."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.api.grpc.serving import GrpcServing
from penstock.api.limits import MOST_SLOW, Room, Watchers
from penstock.api.serving import Serving
from penstock.api.settings import Settings
from penstock.client import Client, ControlPlane
from penstock.client.local import LocalPlane
from penstock.control.service import Service

TRANSPORTS = ("rest", "grpc")


@dataclass
class Site:
    """The server, its service layer, and bare requests to it."""

    serving: Serving
    grpc: GrpcServing
    service: Service
    slow: Room
    """The places of those who wait, over both."""

    @property
    def url(self) -> str:
        return self.serving.url

    def client(self, transport: str, token: str | None = None) -> Client:
        """A client over REST or gRPC."""
        return Client(self.url if transport == "rest" else self.grpc.url, token)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.serving.settings.port, timeout=60)
        try:
            sent = {"content-type": "application/json"} if body is not None else {}
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, content, {**sent, **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(text) if text else None
        finally:
            connection.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Service(tmp_path / "state") as service:
        watchers, slow = Watchers(2), Room(MOST_SLOW)
        serving = Serving(service, Settings(port=0), watchers=watchers, slow=slow)
        grpc = GrpcServing(service, Settings(port=0), watchers=watchers, slow=slow, reflection=True)
        serving.start()
        grpc.start()
        try:
            yield Site(serving, grpc, service, slow)
        finally:
            serving.close()
            grpc.close()


@pytest.fixture(params=TRANSPORTS)
def client(request: pytest.FixtureRequest, site: Site) -> Iterator[Client]:
    with site.client(request.param) as made:
        yield made


@pytest.fixture(params=[*TRANSPORTS, "local"])
def plane(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControlPlane]:
    if request.param == "local":
        with LocalPlane(tmp_path / "local") as made:
            yield made
        return
    with request.getfixturevalue("site").client(request.param) as client:
        yield client
