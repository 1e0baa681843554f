"""Serving over gRPC: the service layer on a socket, with the standard health service and, by setting, reflection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from pydantic import ValidationError

from penstock.api.access import admit
from penstock.api.app import Runs
from penstock.api.grpc import failures
from penstock.api.grpc.health import MOST_HEALTH, Health
from penstock.api.grpc.operations import SLOW, Operation, operations
from penstock.api.grpc.requests import Watching
from penstock.api.limits import MOST_BYTES, MOST_SLOW, Room, Watchers
from penstock.api.problems import refusal
from penstock.api.settings import Settings
from penstock.control.answers import EventAnswer
from penstock.control.caller import Caller
from penstock.control.requests import Request
from penstock.control.service import Service
from penstock.control.watching import ADMITTED, SHOWN_APART, watch
from penstock.errors import ListenRefused, PenstockError
from penstock.rpc.messages import PACKAGE, kind_of, methods, pack, unpack

_log = structlog.get_logger()

R = TypeVar("R", bound=Request)

ASKING = 32
"""How many requests are answered at once, besides those that watch."""
MOST_OPEN = 512
GRACE = 5.0
_WATCH = "Events.Watch"
_REFLECTION = "/grpc.reflection."


class GrpcServing:
    """A server that answers from `start` until `close`."""

    def __init__(
        self,
        service: Service,
        settings: Settings,
        *,
        reflection: bool = False,
        runs: Runs = lambda: (None, None),
        watchers: Watchers | None = None,
        slow: Room | None = None,
    ) -> None:
        """ListenRefused when the address would let others in unguarded, or cannot be had."""
        settings.check(tokens=service.people.need_tokens())
        self._service, self._settings = service, settings
        self._watchers = watchers or Watchers(settings.most_watchers)
        self._slow = slow or Room(MOST_SLOW)
        self._pool = ThreadPoolExecutor(ASKING + self._watchers.most + MOST_HEALTH, thread_name_prefix="grpc")
        options = [
            # Another server on the same port would take turns with this one, unseen.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MOST_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 64 << 10),
        ]
        guards: list[grpc.ServerInterceptor] = [_Guard(self._caller)]
        self._server = grpc.server(self._pool, interceptors=guards, options=options, maximum_concurrent_rpcs=MOST_OPEN)
        names = self._add_methods(operations(runs))
        self._health = Health(service, self._watchers)
        for name in ("", *names):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if reflection:
            from grpc_reflection.v1alpha import reflection as reflecting

            shown = (*names, health.SERVICE_NAME, reflecting.SERVICE_NAME)
            reflecting.enable_server_reflection(shown, self._server)
        self.settings = replace(settings, port=self._bind())
        """As it is: a port 0 has become the one that was free."""

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.settings.url.replace("http", "grpc", 1)

    def start(self) -> None:
        """Returns when it answers."""
        self._server.start()

    def close(self) -> None:
        """Ends it in order: requests under way are answered, those that watch are ended."""
        self._watchers.closing = True
        self._health.enter_graceful_shutdown()
        self._server.stop(GRACE).wait(GRACE + 1.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _bind(self) -> int:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        try:
            if settings.certificate is None or settings.key is None:
                return self._server.add_insecure_port(address)
            pair = (settings.key.read_bytes(), settings.certificate.read_bytes())
            return self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except (OSError, RuntimeError) as error:
            self._pool.shutdown(wait=False)
            raise ListenRefused(
                f"cannot listen for gRPC on {address}",
                remedy="Give another address to --grpc-listen (or none), or stop what listens there, or mend the TLS files.",
            ) from error

    def _add_methods(self, known: Mapping[str, Operation]) -> list[str]:
        """Every service of the proto file; their names."""
        found: dict[str, dict[str, Any]] = {}
        for name, method in methods():
            service, _, call = name.partition(".")
            request = kind_of(method.input_type)
            handler: Any
            codec: dict[str, Any] = {"request_deserializer": request.FromString, "response_serializer": _serialized}
            if name == _WATCH:
                handler = grpc.unary_stream_rpc_method_handler(self._watch, **codec)
            else:
                handler = grpc.unary_unary_rpc_method_handler(self._answering(known[name], method.output_type, name), **codec)
            found.setdefault(f"{PACKAGE}.{service}", {})[call] = handler
        handlers = [grpc.method_handlers_generic_handler(name, calls) for name, calls in found.items()]
        self._server.add_generic_rpc_handlers(handlers)
        return list(found)

    def _answering(self, operation: Operation, kind: Any, name: str) -> Callable[[Message, grpc.ServicerContext], Message]:
        def answer(sent: Message, context: grpc.ServicerContext) -> Message:
            with _told(context, name):
                caller = self._caller(context.invocation_metadata())
                request = _request(operation.request, sent)
                is_slow = name in SLOW or bool(getattr(request, "wait", False))
                with self._slow.taken() if is_slow else nullcontext():
                    found = operation.act(self._service, caller, request)
                return pack(kind, found.model_dump() if found is not None else {})
            raise AssertionError

        return answer

    def _watch(self, sent: Message, context: grpc.ServicerContext) -> Iterator[Message]:
        kind = dict(methods())[_WATCH].output_type
        with _told(context, _WATCH):
            caller = self._caller(context.invocation_metadata())
            request = _request(Watching, sent)
            with self._watchers.taken():
                # Those who asked are told at once that they are heard; the first thing to see may take long.
                context.send_initial_metadata(())
                wanted = self._wanting(context)
                for item in watch(self._service, caller, request.flow, request.after, request.seconds, wanted):
                    if isinstance(item, EventAnswer):
                        yield pack(kind, {"event": item.model_dump()})
                    else:
                        yield pack(kind, {"flow": item.model_dump(exclude=SHOWN_APART)})

    def _wanting(self, context: grpc.ServicerContext) -> Callable[[], bool]:
        """Whether who watches still wants to and may. TokenMissing, AccessDenied."""
        admitted = time.monotonic()

        def wanted() -> bool:
            nonlocal admitted
            if time.monotonic() - admitted > ADMITTED:
                self._caller(context.invocation_metadata())
                admitted = time.monotonic()
            return bool(context.is_active()) and not self._watchers.closing

        return wanted

    def _caller(self, metadata: Any) -> Caller:
        """Who asks. TokenMissing, AccessDenied."""
        sent = [(str(key).lower(), value if isinstance(value, str) else "") for key, value in metadata]
        words = next((value for key, value in sent if key == "authorization"), "").split()
        token = words[1] if len(words) == 2 and words[0].lower() == "bearer" else None
        origins = [value for key, value in sent if key == "origin"]
        return admit(self._service.people, token, is_loopback=self._settings.is_loopback, origins=origins)


class _told:
    """Has whatever fails inside told to the caller as a status."""

    def __init__(self, context: grpc.ServicerContext, name: str) -> None:
        self._context, self._name = context, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValidationError):
            self._context.abort_with_status(failures.status(refusal(error), 422))
        if isinstance(error, PenstockError):
            self._context.abort_with_status(failures.status(error))
        if isinstance(error, Exception):
            _log.error("a call failed unexpectedly", call=self._name, kind=type(error).__name__, exc_info=error)
            surprise = PenstockError("something failed that should not", remedy="The server's log has the cause.")
            self._context.abort_with_status(failures.status(surprise, 500))


class _Guard(grpc.ServerInterceptor):
    """Reflection keeps a thread for as long as it is open: it is for those who may ask at all."""

    def __init__(self, admit: Callable[[Any], Caller]) -> None:
        self._admit = admit

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """The method's handler, or one that says why not."""
        if not details.method.startswith(_REFLECTION):
            return continuation(details)
        try:
            self._admit(details.invocation_metadata)
        except PenstockError as error:
            told = failures.status(error)

            def refuse(sent: Any, context: grpc.ServicerContext) -> Any:
                context.abort_with_status(told)

            return grpc.stream_stream_rpc_method_handler(refuse)
        return continuation(details)


def _request(kind: type[R], sent: Message) -> R:
    return kind.model_validate({name: value for name, value in unpack(sent).items() if value is not None})


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
