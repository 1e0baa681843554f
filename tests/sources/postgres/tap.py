"""A second slot beside the capture's, whose messages a test can look at one by one: what the server really sends."""

from __future__ import annotations

import struct
import time
from types import TracebackType
from typing import NamedTuple, Self

from penstock.core.position import parse_lsn
from penstock.sources.postgres.wire import ReplicationConnection
from tests.conftest import Database
from tests.raw_stream import DEADLINE, is_keepalive, read_frames


class Message(NamedTuple):
    """One pgoutput message and the position that its frame names."""

    lsn: int
    body: bytes

    @property
    def kind(self) -> str:
        """The message's letter: B, C, R, Y, I, U, D, T."""
        return chr(self.body[0])

    @property
    def commit_end(self) -> int:
        """Of a COMMIT: where the transaction ends in the log."""
        return int(struct.unpack_from(">Q", self.body, 10)[0])

    @property
    def truncated(self) -> int:
        """Of a TRUNCATE: how many tables it names."""
        return int(struct.unpack_from(">I", self.body, 1)[0])


class Tap:
    """A temporary slot from here on; `messages` gives what came since the last call."""

    def __init__(self, database: Database, publication: str) -> None:
        self._database = database
        self._connection = ReplicationConnection.connect(database.dsn)
        self._connection.query("CREATE_REPLICATION_SLOT tap TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')")
        self._connection.start_replication("tap", 0, {"proto_version": "1", "publication_names": publication})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.end()

    def messages(self) -> list[Message]:
        """Everything up to the server's present end."""
        [(text,)] = self._database.rows("select pg_current_wal_flush_lsn()::text")
        head, deadline = parse_lsn(text), time.monotonic() + DEADLINE
        found: list[Message] = []
        reached = 0
        while reached < head:
            assert time.monotonic() < deadline, "the server's end was not reached"
            self._connection.send_status(0, 0, 0, True)
            for kind, body in read_frames(self._connection, is_keepalive):
                assert kind == b"d"
                if body[:1] == b"k":
                    reached = max(reached, int(struct.unpack_from(">Q", body, 1)[0]))
                else:
                    found.append(Message(int(struct.unpack_from(">Q", body, 1)[0]), body[25:]))
        return found


def letters(messages: list[Message]) -> str:
    """The messages' kinds in order, type descriptions left out."""
    return "".join(m.kind for m in messages if m.kind != "Y")
