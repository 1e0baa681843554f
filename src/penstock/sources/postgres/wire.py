"""Connections over a socket of our own, because libpq hands over one message a call and we want megabytes."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import NoReturn, Self, cast

from penstock.errors import ProtocolBroken, SourceError, SourceUnreachable
from penstock.sources.postgres.conninfo import Where, resolve
from penstock.sources.postgres.handshake import Session, open_session, startup_parameters
from penstock.sources.postgres.messages import (
    QUERY_LIMIT,
    TERMINATE,
    MessageStream,
    broken_socket,
    closed_by_peer,
    cstring,
    encode,
    encode_status,
)
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.server_errors import (
    ServerError,
    parse_error,
    quoted,
    raise_server_error,
    translate_psycopg,
    translate_sqlstate,
)
from penstock.sources.postgres.tls import TlsChannel

__all__ = [
    "SESSION_OPTIONS",
    "ReplicationConnection",
    "ServerError",
    "parse_error",
    "raise_server_error",
    "translate_psycopg",
    "translate_sqlstate",
]

SESSION_OPTIONS = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 "
    "-c bytea_output=hex -c lc_monetary=C -c search_path="
)

# Notices would stand among the frames of the stream; a server that misses the publication warns with every transaction (18).
_QUIET = "-c client_min_messages=error"

# A role's timeouts would end a session that waits for running transactions to make a slot, or that holds an exported snapshot.
_PATIENCE = "-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0 -c idle_in_transaction_session_timeout=0"

_START_SECONDS = 60.0

# How long `end` waits for the server to let go of the slot.
_FAREWELL = 2.0


class ReplicationConnection:
    """A walsender session; one thread reads, any thread may send a status, and no status is sent but those."""

    def __init__(self, session: Session) -> None:
        self.where: Where = session.where
        self.parameters: dict[str, str] = session.parameters
        self._stream: MessageStream = session.stream
        channel = session.stream.channel
        self._tls: TlsChannel | None = channel if isinstance(channel, TlsChannel) else None
        self._socket: socket.socket = channel.socket if isinstance(channel, TlsChannel) else cast(socket.socket, channel)
        self._rest = b""
        # The last read ended because the view was full: TLS may hold more that the socket does not show any longer.
        self._more = True
        self._closed = False
        self._reading = select.poll()
        self._reading.register(self._socket.fileno(), select.POLLIN)
        # OpenSSL allows one thread at a time in a session; a plain socket may be read and written at once.
        self._session_lock = threading.Lock()
        self._send_lock = threading.Lock()

    @classmethod
    def connect(
        cls,
        dsn: str,
        *,
        application_name: str = "penstock",
        startup_options: str = SESSION_OPTIONS,
        iam: RdsIam | None = None,
        replication: bool = True,
    ) -> Self:
        """A new connection that speaks replication and SQL, or SQL only; `startup_options` win over role, database and dsn.

        With `iam` the password is a token that is minted for this connection.
        """
        info = resolve(dsn, iam.mint if iam else None)
        options = f"{startup_options} {_PATIENCE} {_QUIET}"
        session = open_session(info, startup_parameters(info, application_name, options, replication=replication))
        connection = cls(session)
        try:
            if _major(session.parameters) >= 17:  # older servers refuse a session with an option they do not know
                connection.query("SET transaction_timeout = 0")
        except BaseException:
            connection.close()
            raise
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def query(self, sql: str) -> list[tuple[str | None, ...]]:
        """The rows that one command gives, as text; only before streaming."""
        self._stream.send(encode(b"Q", cstring(sql)))
        rows: list[tuple[str | None, ...]] = []
        while True:
            kind, payload = self._stream.read(QUERY_LIMIT)
            if kind == b"D":
                rows.append(self._row(payload))
            elif kind == b"E":
                self._raise_when_ready(payload)
            elif kind == b"S":
                self._note_parameter(payload)
            elif kind == b"Z":
                return rows
            elif kind not in (b"T", b"C", b"I", b"N"):
                raise ProtocolBroken(f"{self.where.address} answered a query with a message of kind {kind!r}.")

    def describe(self, sql: str) -> list[tuple[str, int, int]]:
        """The columns that one query gives: name, and the type and modifier below any domain; only before streaming."""
        self._stream.send(encode(b"Q", cstring(sql)))
        found: list[tuple[str, int, int]] = []
        while True:
            kind, payload = self._stream.read(QUERY_LIMIT)
            if kind == b"T":
                found = _described(payload, self.where)
            elif kind == b"E":
                self._raise_when_ready(payload)
            elif kind == b"Z":
                return found

    def start_replication(self, slot: str, start: int, options: Mapping[str, str]) -> None:
        """Begin streaming from `slot` at or after `start`; from here on `receive_into` gives the raw stream."""
        pairs = ", ".join(f"{quoted(name)} {_literal(value)}" for name, value in options.items())
        command = f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {start >> 32:X}/{start & 0xFFFFFFFF:X}"
        # The server answers before it reads any log: a network that is cut right here must not hold us for ever.
        self._stream.deadline = time.monotonic() + _START_SECONDS
        self._open_stream(f"{command} ({pairs})" if pairs else command, b"W", "START_REPLICATION")

    def start_copy(self, sql: str) -> None:
        """Begin `COPY … TO STDOUT`; `receive_into` gives its raw stream, after whose ReadyForQuery `query` can be used again."""
        self._open_stream(sql, b"H", "COPY")

    def _open_stream(self, command: str, opening: bytes, name: str) -> None:
        self._stream.send(encode(b"Q", cstring(command)))
        while True:
            kind, payload = self._stream.read(QUERY_LIMIT)
            if kind == opening:
                break
            if kind == b"E":
                self._raise_when_ready(payload)
            if kind == b"S":
                self._note_parameter(payload)
            elif kind != b"N":
                raise ProtocolBroken(f"{self.where.address} answered {name} with a message of kind {kind!r}.")
        self._stream.deadline = None
        self._rest = self._stream.rest()
        self._socket.setblocking(False)

    def receive_into(self, view: memoryview) -> int:
        """Bytes of the raw stream now put into `view`; 0 means that nothing is there yet, and an end of file is an error."""
        if self._rest:
            return self._hand_over(view)
        try:
            if self._tls is None:
                size = self._socket.recv_into(view)
            else:
                with self._session_lock:
                    size = self._tls.decrypt(view)
                self._more = size == len(view)
                return size
        except BlockingIOError:
            return 0
        except EOFError as error:
            raise closed_by_peer(self.where) from error
        except OSError as error:
            raise broken_socket(error, self.where) from error
        if size == 0 and len(view):
            raise closed_by_peer(self.where)
        return size

    def _hand_over(self, view: memoryview) -> int:
        size = min(len(view), len(self._rest))
        view[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def fileno(self) -> int:
        """The socket's descriptor, for a selector; `wait` also knows what TLS has already taken off it."""
        return self._socket.fileno()

    def wait(self, timeout: float) -> bool:
        """True when `receive_into` is worth calling, False when `timeout` seconds passed first."""
        if self._rest or self._closed or (self._more and self._tls is not None):
            return True
        return bool(self._reading.poll(timeout * 1000))

    def send_status(self, written: int, flushed: int, applied: int, reply: bool) -> None:
        """Tell the server how far we are; from any thread, whole messages in order."""
        self._send(encode_status(written, flushed, applied, reply))

    def _send(self, data: bytes) -> None:
        with self._send_lock:
            try:
                if self._tls is not None:
                    with self._session_lock:
                        data = self._tls.encrypt(data)
                left = memoryview(data)
                while left:
                    try:
                        left = left[self._socket.send(left) :]
                    except BlockingIOError:
                        self._await_room()
            except OSError as error:
                raise broken_socket(error, self.where) from error

    def _await_room(self) -> None:
        number = self._socket.fileno()
        if number < 0:
            raise SourceUnreachable(f"The connection to {self.where.address} was closed here while a status was being sent.")
        room = select.poll()
        room.register(number, select.POLLOUT)
        room.poll(1000)

    def end(self) -> None:
        """Say goodbye and wait a moment for the server to let go of the slot; never fails, and closes."""
        with contextlib.suppress(SourceError, OSError, ValueError):
            self._socket.setblocking(False)
            # Without CopyDone: after that one a walsender hears nothing more until it has sent the transaction it is at.
            self._send(TERMINATE)
            self._drain(time.monotonic() + _FAREWELL)
        self.close()

    def _drain(self, deadline: float) -> None:
        # Closing with bytes unread makes the kernel send a reset, which can overtake the last status on its way to the server.
        waste = memoryview(bytearray(1 << 20))
        while (left := deadline - time.monotonic()) > 0:
            self.wait(left)
            self.receive_into(waste)

    def close(self) -> None:
        """Close the socket at once; may be called twice, and from another thread."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in a query
        with self._session_lock:
            self._socket.close()

    def _raise_when_ready(self, payload: bytes) -> NoReturn:
        # The session goes on after an error, but not before ReadyForQuery; nothing follows a fatal one.
        if parse_error(payload).severity not in ("FATAL", "PANIC"):
            while self._stream.read(QUERY_LIMIT)[0] != b"Z":
                pass
        raise_server_error(payload, self.where)

    def _note_parameter(self, payload: bytes) -> None:
        name, _, value = payload.rstrip(b"\0").partition(b"\0")
        self.parameters[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")

    def _row(self, payload: bytes) -> tuple[str | None, ...]:
        values: list[str | None] = []
        try:
            (count,) = struct.unpack_from("!h", payload)
            position = 2
            for _ in range(count):
                (size,) = struct.unpack_from("!i", payload, position)
                position += 4
                if size < 0:
                    values.append(None)
                    continue
                if position + size > len(payload):
                    raise ValueError("a value goes beyond its row")
                values.append(payload[position : position + size].decode())
                position += size
        except (struct.error, ValueError) as error:
            raise ProtocolBroken(f"{self.where.address} sent a row that cannot be read.") from error
        return tuple(values)


def _described(payload: bytes, where: Where) -> list[tuple[str, int, int]]:
    try:
        (count,) = struct.unpack_from("!h", payload)
        found, at = [], 2
        for _ in range(count):
            end = payload.index(b"\0", at)
            kind, _, modifier = struct.unpack_from("!Ihi", payload, end + 7)
            found.append((payload[at:end].decode(), kind, modifier))
            at = end + 19
    except (struct.error, ValueError) as error:
        raise ProtocolBroken(f"{where.address} described a query in a way that cannot be read.") from error
    return found


def _major(parameters: Mapping[str, str]) -> int:
    found = re.match(r"\d+", parameters.get("server_version", ""))
    return int(found[0]) if found else 0


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
