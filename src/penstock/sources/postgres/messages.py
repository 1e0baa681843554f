"""Messages of PostgreSQL's frontend/backend protocol over a socket, with a bound on everything a peer may claim."""

from __future__ import annotations

import ssl
import struct
import time
from collections.abc import Mapping
from typing import Protocol

from penstock.errors import ProtocolBroken, SourceRefused, SourceUnreachable
from penstock.sources.postgres.conninfo import Where

PROTOCOL = 3 << 16
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
TERMINATE = b"X\0\0\0\4"

# The longest messages of a startup are errors and SASL steps, some kB; libpq stops at 30,000 bytes too.
STARTUP_LIMIT = 64 << 10
# A server sends some twenty; a peer that never comes to an end is none.
STARTUP_MESSAGES = 1000
# Before streaming only short answers of replication commands and catalogue queries arrive.
QUERY_LIMIT = 64 << 20

_HEADER = struct.Struct("!ci")
_STATUS = struct.Struct("!ciBQQQqB")
_UNIX_TO_POSTGRES_MICROSECONDS = 946_684_800_000_000


def encode(kind: bytes, payload: bytes = b"") -> bytes:
    """One frontend message."""
    return _HEADER.pack(kind, len(payload) + 4) + payload


def encode_startup(parameters: Mapping[str, str]) -> bytes:
    """The startup message, the only one without a kind byte."""
    body = b"".join(cstring(text) for pair in parameters.items() for text in pair) + b"\0"
    return struct.pack("!ii", len(body) + 8, PROTOCOL) + body


def encode_status(written: int, flushed: int, applied: int, reply: bool) -> bytes:
    """A standby status update, stamped with the present time."""
    now = time.time_ns() // 1000 - _UNIX_TO_POSTGRES_MICROSECONDS
    return _STATUS.pack(b"d", _STATUS.size - 1, ord("r"), written, flushed, applied, now, reply)


def cstring(text: str) -> bytes:
    """`text` as the protocol wants it; refuses a NUL, which would end the string early and start another parameter."""
    # A password file may hold bytes that are no UTF-8; they are sent as they are.
    data = text.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise SourceRefused("A connection parameter holds a NUL character.", remedy="Remove the NUL from the source's dsn.")
    return data + b"\0"


class Channel(Protocol):
    """What bytes go through: a socket, or TLS over one."""

    def recv(self, size: int, /) -> bytes:
        """At least one byte, or none at the end."""

    def sendall(self, data: bytes, /) -> None:
        """Hand all of `data` on."""

    def settimeout(self, timeout: float | None, /) -> None:
        """Bound each operation in time."""

    def close(self) -> None:
        """Let go of the socket."""


class MessageStream:
    """A blocking reader and writer of whole messages, used until streaming begins; obeys `deadline` where it is set."""

    def __init__(self, channel: Channel, where: Where) -> None:
        self.channel = channel
        self.where = where
        self.deadline: float | None = None
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Hand all of `data` to the kernel; that the peer is gone is left for the next read to find."""
        try:
            self.arm()
            self.channel.sendall(data)
        except TimeoutError as error:
            raise broken_socket(error, self.where) from error
        except OSError:
            # A server that refuses a client certificate or shuts down says why before it closes: the reason can still be read.
            return

    def read(self, limit: int) -> tuple[bytes, bytes]:
        """The next message's kind and payload; a length beyond `limit` is not PostgreSQL and is never allocated."""
        self._fill(5)
        kind, length = _HEADER.unpack_from(self._buffer)
        if not 4 <= length <= limit:
            raise ProtocolBroken(f"{self.where.address} answered with something that is not the PostgreSQL protocol.")
        self._fill(length + 1)
        payload = bytes(self._buffer[5 : length + 1])
        del self._buffer[: length + 1]
        return kind, payload

    def read_byte(self) -> bytes:
        """The one byte that answers an SSLRequest, and nothing after it.

        What follows belongs to the TLS layer: a byte taken here in the clear could have been put in by anyone (CVE-2021-23222).
        """
        try:
            self.arm()
            byte = self.channel.recv(1)
        except OSError as error:
            raise broken_socket(error, self.where) from error
        if not byte:
            raise closed_by_peer(self.where)
        return byte

    def rest(self) -> bytes:
        """Bytes that arrived behind the last message; they are handed over once."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def arm(self) -> None:
        """Give the channel what is left of the deadline as its timeout."""
        if self.deadline is None:
            self.channel.settimeout(None)
            return
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.channel.settimeout(left)

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            try:
                self.arm()
                data = self.channel.recv(65536)
            except OSError as error:
                raise broken_socket(error, self.where) from error
            if not data:
                raise closed_by_peer(self.where)
            self._buffer += data


def closed_by_peer(where: Where) -> SourceUnreachable:
    """The error for an end of file where more was due."""
    return SourceUnreachable(f"{where.address} closed the connection.")


def broken_socket(error: OSError, where: Where) -> SourceUnreachable | SourceRefused:
    """The error for a socket operation that failed."""
    if isinstance(error, TimeoutError):
        return SourceUnreachable(
            f"{where.address} did not answer in time.",
            remedy="Check host, port and firewall, or raise connect_timeout in the source's dsn.",
        )
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        # TLS 1.3 reports a refused client certificate only at the first read after the handshake.
        return SourceRefused(
            f"{where.address} ended the TLS session of user {where.user!r}: {_reason(error)}.",
            remedy="Check sslcert, sslkey and ssl_min_protocol_version in the source's dsn against the server's settings.",
        )
    if isinstance(error, (ssl.SSLZeroReturnError, ssl.SSLEOFError)):
        return closed_by_peer(where)
    return SourceUnreachable(f"The connection to {where.address} failed: {error.strerror or type(error).__name__}.")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unknown reason").lower().replace("_", " ")
