"""Nothing is confirmed that is not durable: interleaved and streamed transactions, keepalives between them, capture killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.core.position import parse_lsn
from penstock.journal.writer import JournalWriter
from penstock.observe.failpoints import NAMES
from tests.conftest import Database
from tests.sources.postgres.captured import Captured

FAILPOINTS = [name for name in NAMES if name.startswith("capture.")]


class Child:
    """A capture process whose worker confirms at once whatever the journal holds."""

    def __init__(self, captured: Captured, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.engine.capturing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
        )
        self.appended = 0
        self._say({"source": "postgres", "journal": str(captured.directory)})
        self._say({"begin": captured.prepared.start, "recipe": captured.source.recipe()})
        threading.Thread(target=self._answer, daemon=True).start()

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return

    def _answer(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "appended" in message:
                self.appended += 1
                self._say({"confirm": message["appended"]})
                self._say({"probe": 1})

    def wait(self, seconds: float) -> None:
        """Lets it run until it is killed by its failpoint or for so long."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_for_progress(self) -> None:
        """Returns when the journal has grown."""
        deadline = time.monotonic() + 30
        while not self.appended:
            assert time.monotonic() < deadline, "capture did not begin"
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                continue


class Load(threading.Thread):
    """Transactions over several sessions, their statements interleaved: committed, rolled back, with savepoints, some long."""

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(daemon=True)
        self._database, self._chance = database, random.Random(seed)
        self.committed: set[int] = set()
        self.done = threading.Event()

    def run(self) -> None:
        sessions = [self._database.connect() for _ in range(4)]
        held: list[list[int] | None] = [None] * len(sessions)
        number = 0
        while not self.done.is_set() or any(h is not None for h in held):
            self.done.wait(0.002)
            i = self._chance.randrange(len(sessions))
            mine = held[i]
            if mine is None:
                sessions[i].execute("begin")
                held[i] = []
                continue
            act = self._chance.random()
            if act < 0.7:
                number += 1
                sessions[i].execute(b"insert into a values (%s, repeat('x', %s))", (number, self._chance.choice((1, 9000))))
                mine.append(number)
            elif act < 0.8:
                sessions[i].execute("savepoint s; insert into a values (-1 - (random() * 1e9)::int, 'gone'); rollback to s")
            elif act < 0.85:
                sessions[i].execute("insert into unpublished values (repeat('w', 2000))")
            else:
                ends = act < 0.95
                sessions[i].execute("commit" if ends else "rollback")
                if ends:
                    self.committed.update(mine)
                held[i] = None
        for session in sessions:
            session.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_between_transactions_and_keepalives_nothing_is_confirmed_early(database: Database, tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
    sys.stdout.write(f"PENSTOCK_TEST_SEED={seed}\n")
    chance = random.Random(seed)
    database.execute("create table a (id int primary key, v text); create table unpublished (v text)")
    database.execute(f"alter database {database.name} set wal_sender_timeout = '1s'")
    # Big and small ones by turns: some transactions are streamed, others come whole.
    database.execute(f"alter database {database.name} set logical_decoding_work_mem = '64kB'")
    captured = Captured(database, tmp_path, publication_tables=["public.a"])
    load = Load(database, seed)
    load.start()
    try:
        _kill_again_and_again(database, captured, chance)
    finally:
        load.done.set()
        load.join(30)
    _wait_until_free(database)
    database.execute(f"alter database {database.name} reset wal_sender_timeout")
    with captured.running():
        captured.drain(120)
    ids = [e["row"]["id"] for e in captured.events("a")]
    assert len(load.committed) > 100
    assert sorted(ids) == sorted(load.committed)
    identities = [e["id"] for e in captured.events("a")]
    assert len(set(identities)) == len(identities) and identities == sorted(identities)


def _kill_again_and_again(database: Database, captured: Captured, chance: random.Random) -> None:
    for name in [*FAILPOINTS, None, None]:
        armed = {"PENSTOCK_FAILPOINT": f"{name}:{chance.choice((2, 5, 9))}"} if name else {}
        _wait_until_free(database)
        child = Child(captured, **armed)
        if name is None:
            child.wait_for_progress()
        child.wait(chance.uniform(0, 1.5) if name is None else 30)
        child.kill()
        confirmed = database.rows("select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'penstock_flow'")
        journal = JournalWriter(captured.directory)
        assert parse_lsn(confirmed[0][0]) <= journal.mark, "the server was told more than the journal holds"
        journal.close()


def _wait_until_free(database: Database) -> None:
    deadline = time.monotonic() + 20
    while database.rows("select 1 from pg_replication_slots where slot_name = 'penstock_flow' and active"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
