"""Requests over REST: JSON both ways, errors as the errors they were, over one connection that is kept."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlencode

from pydantic import ValidationError

from penstock.client.routes import ROUTES
from penstock.client.transport import told
from penstock.control.answers import Failure
from penstock.errors import PenstockError, Problem, ServerUnreachable


class RestTransport:
    """One server; used by one thread at a time."""

    def __init__(self, parts: SplitResult, token: str | None, timeout: float, ca_file: str | None) -> None:
        assert parts.hostname is not None
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._base, self._token, self._timeout, self._ca_file = parts.path.rstrip("/"), token, timeout, ca_file
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._base}"
        """The server's address, without what does not belong on a screen."""
        self._kept: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Gives back the connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def ask(self, operation: str, /, **asked: Any) -> Any:
        """The answer's JSON; None when there is none. Raises the error that the server answers, or ServerUnreachable."""
        fresh = self._kept is None
        connection = self._kept or self._connect()
        self._kept = None
        try:
            response = self._send(connection, operation, asked)
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            # A server closes connections that were long idle; what may be repeated is, on a new one.
            if not fresh and ROUTES[operation].method in ("GET", "PUT", "DELETE"):
                return self.ask(operation, **asked)
            raise self._unreachable(error) from error
        self._kept = connection
        if response.status >= 400:
            raise _failure(response.status, content, self.url)
        try:
            return json.loads(content) if content else None
        except ValueError as error:
            raise ServerUnreachable(f"what answers at {self.url} is no penstock server") from error

    def stream(self, operation: str, /, **asked: Any) -> Iterator[tuple[str, Any]]:
        """Server-sent events: name and data each, until the server ends them."""
        connection = self._connect()
        try:
            response = self._send(connection, operation, asked, {"accept": "text/event-stream"})
            if response.status >= 400:
                raise _failure(response.status, response.read(), self.url)
            name, data = "message", ""
            while line := response.readline():
                text = line.decode().rstrip("\r\n")
                if not text:
                    if data:
                        yield name, json.loads(data)
                    name, data = "message", ""
                elif text.startswith("event:"):
                    name = text[6:].strip()
                elif text.startswith("data:"):
                    data += text[5:].strip()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        try:
            context = ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ServerUnreachable(
                f"the authorities in {self._ca_file} cannot be read: {reason}", remedy="Check PENSTOCK_CA_FILE."
            ) from error
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        operation: str,
        asked: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        route = ROUTES[operation]
        target = f"{self._base}/{'/'.join(quote(part, safe='') for part in route.address(asked))}"
        wanted = {key: value for key, value in route.parameters(asked).items() if value not in (None, "", (), [])}
        if wanted:
            target += f"?{urlencode({k: _text(v) for k, v in wanted.items()}, doseq=True)}"
        sent = {**route.headers(asked), **(headers or {})}
        body = route.body(asked)
        content = None
        if body is not None:
            sent["content-type"] = "application/json"
            content = json.dumps(body, default=str).encode()
        if self._token is not None:
            sent["authorization"] = f"Bearer {self._token}"
        connection.request(route.method, target, content, sent)
        return connection.getresponse()

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        words = "it did not answer in time" if isinstance(error, socket.timeout) else str(error) or type(error).__name__
        return ServerUnreachable(f"the server at {self.url} cannot be reached: {words}")


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _failure(status: int, content: bytes, url: str) -> PenstockError:
    try:
        found = Failure.model_validate_json(content)
    except ValidationError:
        return ServerUnreachable(f"what answers at {url} is no penstock server: it answered with status {status}")
    return told(found.code, found.detail, found.remedy, [Problem(p.path, p.message, p.remedy) for p in found.problems])
