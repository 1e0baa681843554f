"""Reading a raw replication stream in tests: its frames, a wait for some of them, and two threads at work on one connection."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable

import psycopg

from penstock.sources.postgres.wire import ReplicationConnection

Frame = tuple[bytes, bytes]

DEADLINE = 60.0


def is_row(frame: Frame) -> bool:
    """The frame carries an INSERT."""
    kind, body = frame
    return kind == b"d" and body[:1] == b"w" and body[25:26] == b"I"


def is_commit(frame: Frame) -> bool:
    """The frame carries a COMMIT."""
    kind, body = frame
    return kind == b"d" and body[:1] == b"w" and body[25:26] == b"C"


def is_keepalive(frame: Frame) -> bool:
    """The frame carries a keepalive."""
    kind, body = frame
    return kind == b"d" and body[:1] == b"k"


def read_frames(
    connection: ReplicationConnection, wanted: Callable[[Frame], bool], count: int = 1, size: int = 1 << 20
) -> list[Frame]:
    """The frames from here up to the one that is the `count`th of those wanted, or a few more."""
    found: list[Frame] = []
    rest = b""
    view = memoryview(bytearray(size))
    deadline = time.monotonic() + DEADLINE
    while count > 0:
        assert time.monotonic() < deadline, f"{count} more frames were due after {found[-3:]}"
        if not connection.wait(0.5):
            continue
        data = rest + bytes(view[: connection.receive_into(view)])
        position = 0
        while position + 5 <= len(data):
            end = position + 1 + struct.unpack_from("!i", data, position + 1)[0]
            if end > len(data):
                break
            found.append((data[position : position + 1], data[position + 5 : end]))
            count -= wanted(found[-1])
            position = end
        rest = data[position:]
    return found


def check_statuses_beside_reading(connection: ReplicationConnection, dsn: str, batches: int = 20) -> None:
    """Two threads send statuses as fast as they can while this one reads all rows of table `t` that it makes."""
    failures: list[BaseException] = []
    stop = threading.Event()
    sent = [0, 0]

    def send(number: int) -> None:
        try:
            while not stop.is_set():
                connection.send_status(0, 0, 0, sent[number] % 16 == 0)
                sent[number] += 1
        except BaseException as error:
            failures.append(error)

    senders = [threading.Thread(target=send, args=(number,)) for number in range(2)]
    for sender in senders:
        sender.start()
    try:
        with psycopg.connect(dsn, autocommit=True) as control:
            for batch in range(batches):
                control.execute(
                    "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(%s::int, %s::int) g",
                    (batch * 1000, batch * 1000 + 999),
                )
        frames = read_frames(connection, is_row, batches * 1000)
    finally:
        stop.set()
        for sender in senders:
            sender.join(DEADLINE)
    assert failures == []
    assert sum(map(is_row, frames)) == batches * 1000
    assert {kind for kind, _ in frames} == {b"d"}
    assert min(sent) > 0
