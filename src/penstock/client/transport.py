"""How a request reaches a server: the contract of transports, what they share, and the choice by the server's address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import urlsplit

from penstock.errors import ExtraMissing, FlowInvalid, PenstockError, Problem, ServerUnreachable, TokenMissing, from_data


class Transport(Protocol):
    """One server; used by one thread at a time. Operations have the names of `control.proto`: `Flows.Create`."""

    url: str
    """The server's address, without what does not belong on a screen."""

    def ask(self, operation: str, /, **asked: Any) -> Any:
        """The answer as plain data; raises the error that the server answers, or ServerUnreachable."""

    def stream(self, operation: str, /, **asked: Any) -> Iterator[tuple[str, Any]]:
        """Answers that come one after another, each with its name, until the server ends them."""

    def close(self) -> None:
        """Gives back the connection."""


def transport_to(url: str, token: str | None = None, timeout: float = 90.0, ca_file: str | None = None) -> Transport:
    """The transport for an address: http(s)://… or grpc(s)://…

    `ca_file` names the authorities that the server's certificate may come from; the system's when not given.
    """
    parts = urlsplit(url)
    if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
        # The libraries below would quote it in their own refusals.
        raise TokenMissing("the token has characters that no token has", remedy="Check PENSTOCK_TOKEN: nothing but the token.")
    if parts.scheme in ("http", "https") and parts.hostname:
        from penstock.client.rest import RestTransport

        return RestTransport(parts, token, timeout, ca_file)
    if parts.scheme in ("grpc", "grpcs") and parts.hostname:
        try:
            from penstock.client.grpc import GrpcTransport
        except ModuleNotFoundError as error:
            raise ExtraMissing(
                f"gRPC needs the library {error.name}, which is not installed",
                remedy="pip install 'penstock[server]', or name the server's http address.",
            ) from error
        return GrpcTransport(parts, token, timeout, ca_file)
    raise ServerUnreachable(f"{url!r} is no address of a server", remedy="Give one such as http://127.0.0.1:8466.")


def told(code: str, detail: str, remedy: str, problems: list[Problem]) -> PenstockError:
    """The error that a server has told of."""
    error = from_data({"code": code, "message": detail, "remedy": remedy})
    if isinstance(error, FlowInvalid):
        error.problems = tuple(problems)
    elif problems:
        error.message = f"{error.message}: {'; '.join(f'{p.path}: {p.message}' for p in problems)}"
    return error
