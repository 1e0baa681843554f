"""A worker with an http destination: everything arrives in order per key, though the server fails and the worker is killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Database
from tests.destinations.http.receiver import Arrived, Receiver, Reply, reply
from tests.flows import FlowUnderTest, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Flaky:
    """Takes every event id once and answers every so often with something else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self.taken: dict[str, dict[str, Any]] = {}

    def __call__(self, arrived: Arrived) -> Reply:
        with self._lock:
            self._count += 1
            if self._count == 1:
                return reply(503, retry_after="1")
            if self._count % 50 == 0:
                return reply(500)
            if self._count % 70 == 0:
                return None
            for change in arrived.changes:
                self.taken.setdefault(change["event_id"], change)
            # Taken, and the answer is lost.
            return None if self._count % 90 == 0 else reply()


@pytest.fixture
def flaky() -> Iterator[tuple[Flaky, Receiver]]:
    made = Flaky()
    with Receiver(made) as receiver:
        yield made, receiver


def test_everything_arrives_through_failures_and_a_kill(
    database: Database, tmp_path: Path, flaky: tuple[Flaky, Receiver]
) -> None:
    server, receiver = flaky
    database.execute("create table items (id int primary key, v int)")
    flow = FlowUnderTest(database, tmp_path)
    definition = yaml.safe_load(flow.path.read_text())
    hook = {"url": receiver.url.replace("//", "//user:pass-word@"), "backoff_base": "5ms", "backoff_max": "500ms"}
    definition["destinations"] = [{"name": "hook", "type": "http", "options": hook}]
    flow.path.write_text(yaml.safe_dump(definition))
    flow.make_slot()
    database.execute("insert into items select g, 0 from generate_series(1, 300) g")
    flow.start()
    try:
        wait_until(lambda: len(server.taken) > 150, 90, "too little has arrived")
    finally:
        flow.kill()
    database.execute("update items set v = v + 1 where id % 3 = 0; update items set id = id + 1000 where id = 7")
    database.execute("delete from items where id = 9")
    flow.drain()
    state: dict[int, int] = {}
    last: dict[int, str] = {}
    for event_id, change in server.taken.items():
        key = change["key"]["id"]
        assert last.get(key, "") < event_id
        last[key] = event_id
        state.pop((change["before"] or change["key"])["id"], None)
        if change["op"] != "delete":
            state[key] = change["after"]["v"]
    assert state == dict(database.rows("select id, v from items"))
    log = "".join(path.read_text() for path in flow.state.rglob("*.log*"))
    told = [json.loads(line) for line in log.splitlines() if "asks to be left alone for 1 s" in line]
    assert told and all(line["seconds"] >= 1 for line in told)
    assert "pass-word" not in log + flow.output()
