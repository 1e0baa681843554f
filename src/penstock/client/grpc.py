"""Requests over gRPC: the same operations and the same errors, over one channel that is kept."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

import grpc
from google.protobuf.message import DecodeError
from grpc_status.rpc_status import from_call

from penstock.client.transport import told
from penstock.errors import NotFound, PenstockError, Problem, RequestRefused, ServerUnreachable
from penstock.rpc import control_pb2
from penstock.rpc.messages import PACKAGE, kind_of, methods, pack, unpack

PORT = 8467


class GrpcTransport:
    """One server; used by one thread at a time."""

    def __init__(self, parts: SplitResult, token: str | None, timeout: float, ca_file: str | None) -> None:
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        """The server's address, without what does not belong on a screen."""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        target = f"{host}:{parts.port or PORT}"
        # Pages of flows may be large; what a server sends is its own affair. A proxy of the environment is for the web.
        options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
        if parts.scheme == "grpcs":
            credentials = grpc.ssl_channel_credentials(_authorities(ca_file))
            self._channel = grpc.secure_channel(target, credentials, options)
        else:
            self._channel = grpc.insecure_channel(target, options)
        self._metadata = [("authorization", f"Bearer {token}")] if token is not None else []
        self._timeout = timeout
        self._methods = dict(methods())
        self._calls: dict[str, Callable[..., Any]] = {}

    def close(self) -> None:
        """Gives back the channel."""
        self._channel.close()

    def ask(self, operation: str, /, **asked: Any) -> Any:
        """The answer as plain data; raises the error that the server answers, or ServerUnreachable."""
        request = pack(self._methods[operation].input_type, asked)
        try:
            return unpack(self._call(operation)(request, timeout=self._timeout, metadata=self._metadata))
        except grpc.RpcError as error:
            raise self._failure(error) from error

    def stream(self, operation: str, /, **asked: Any) -> Iterator[tuple[str, Any]]:
        """Answers that come one after another, each by the name of its field, until the server ends them."""
        request = pack(self._methods[operation].input_type, asked)
        answers = self._call(operation)(request, metadata=self._metadata)
        try:
            for answer in answers:
                name = answer.WhichOneof("item")
                if name is not None:
                    yield name, unpack(getattr(answer, name))
        except grpc.RpcError as error:
            raise self._failure(error) from error
        finally:
            answers.cancel()

    def _call(self, operation: str) -> Callable[..., Any]:
        found = self._calls.get(operation)
        if found is None:
            method = self._methods[operation]
            streams = operation == "Events.Watch"
            make: Any = self._channel.unary_stream if streams else self._channel.unary_unary
            codec = {"request_serializer": _serialized, "response_deserializer": kind_of(method.output_type).FromString}
            found = self._calls[operation] = make(f"/{PACKAGE}.{operation.replace('.', '/')}", **codec)
        return found

    def _failure(self, error: Any) -> PenstockError:
        try:
            status = from_call(error)
        except (ValueError, DecodeError):
            status = None
        for detail in status.details if status is not None else ():
            failure = control_pb2.Failure()
            if detail.Unpack(failure):
                problems = [Problem(p.path, p.message, p.remedy) for p in failure.problems]
                return told(failure.code, failure.detail, failure.remedy, problems)
        return self._unexplained(error.code(), error.details() or "")

    def _unexplained(self, code: grpc.StatusCode, words: str) -> PenstockError:
        """The error for a status that gRPC itself has set."""
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return NotFound(f"the server at {self.url} does not know this call", remedy="Check its version.")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return RequestRefused(f"the server at {self.url} does not take the request: {words}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            words = "it did not answer in time"
        return ServerUnreachable(f"the server at {self.url} cannot be reached: {words or code.name.lower()}")


def _authorities(ca_file: str | None) -> bytes | None:
    """The certificates that are trusted: those of the file, else the system's, else those that gRPC brings."""
    place = ca_file or ssl.get_default_verify_paths().cafile
    try:
        return Path(place).read_bytes() if place else None
    except OSError as error:
        raise ServerUnreachable(
            f"the authorities in {place} cannot be read: {(error.strerror or '').lower()}", remedy="Check PENSTOCK_CA_FILE."
        ) from error


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())
