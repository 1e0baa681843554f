"""Messages between the driver and its lanes: plain data over an authenticated connection, never pickles."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import msgspec


def send(connection: Connection, message: dict[str, Any]) -> None:
    """Sends one message."""
    connection.send_bytes(msgspec.msgpack.encode(message))


def receive(connection: Connection) -> dict[str, Any]:
    """The next message; EOFError when the other side is gone."""
    found: dict[str, Any] = msgspec.msgpack.decode(connection.recv_bytes())
    return found
