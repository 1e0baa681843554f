"""A flow with every kind of destination side by side, whose every process and server can be killed and comes back."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg

from penstock.observe.failpoints import NAMES
from tests.conftest import Database
from tests.flows import (
    SCHEMA,
    FlowUnderTest,
    assert_duckdb_equals_source,
    assert_log_is_exact,
    change_log,
    one_write,
)

TABLES = {"accounts": "id", "lines": "a, b", '"We""ird; table"': '"Id"', "steps": "n"}


class Hook:
    """The web hook's process, at one address for all its lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/changes"

    def start(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "tests.chaos.receiving", str(self.port), str(self.path)])

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def changes(self) -> list[dict[str, Any]]:
        """What arrived, in order; a line that a kill has cut was not answered, and came again."""
        found = []
        for line in self.path.read_bytes().split(b"\n"):
            with contextlib.suppress(json.JSONDecodeError):
                one = json.loads(line)
                found += one if isinstance(one, list) else [one]
        return found


class Site:
    """Source, targets, flow and worker."""

    def __init__(self, directory: Path, source: Database, target: Database, max_wait: str = "20ms") -> None:
        self.source, self.target = source, target
        source.execute(SCHEMA)
        self.hook = Hook(directory / "hook.jsonl")
        more = [
            {"name": "copy", "type": "postgres", "options": {"dsn": target.dsn}, "batch": {"max_wait": max_wait}},
            {"name": "hook", "type": "http", "options": {"url": self.hook.url}, "batch": {"max_wait": max_wait}},
        ]
        self.flow = FlowUnderTest(
            source,
            directory,
            max_wait=max_wait,
            more=more,
            config={"give_up_policy": "never", "retry": {"max": "2s"}},
            status_interval="1s",
        )
        self.flow.make_slot()
        self.marks = directory / "marks"
        self.kills: Counter[str] = Counter()

    def close(self) -> None:
        if self.flow.process is not None and self.flow.process.poll() is None:
            self.flow.kill()
        self.hook.kill()

    def start_worker(self, chance: random.Random) -> None:
        """A worker that may kill itself, or a process of its own, at some boundary."""
        self.marks.mkdir(exist_ok=True)
        for mark in self.marks.iterdir():
            self.kills[f"at {mark.name}"] += 1
            mark.unlink()
        if chance.random() < 0.3:
            self.flow.start()
            return
        setting = ",".join(f"{name}:{chance.choice((1, 3, 30, 300))}" for name in chance.sample(NAMES, 2))
        self.flow.start(PENSTOCK_FAILPOINT=setting, PENSTOCK_FAILPOINT_ONCE=str(self.marks))

    def strike(self, what: str, chance: random.Random) -> None:
        """Kills one thing; what does not come back by itself is started again."""
        self.kills[what] += 1
        if what == "worker":
            self.flow.kill()
        elif what in ("source", "target"):
            server = (self.source if what == "source" else self.target).server
            server.kill()
            time.sleep(chance.uniform(0, 2))
            server.start()
        elif what == "hook":
            self.hook.kill()
            time.sleep(chance.uniform(0, 2))
            self.hook.start()
        else:
            for process in self._family(what)[: 1 if what == "lane" else None]:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)

    def look_after(self, chance: random.Random) -> None:
        """Starts the worker again where it has ended: by a kill, or because the source was down when it started."""
        process = self.flow.process
        if process is not None and process.poll() is not None:
            if process.returncode != -signal.SIGKILL:
                assert "source_unreachable" in self.flow.output().splitlines()[-2], self.flow.output()
                self.kills["worker that found no source"] += 1
            self.start_worker(chance)

    def _family(self, what: str) -> list[psutil.Process]:
        name = {"jvm": "java"}.get(what, what)
        found = []
        assert self.flow.process is not None
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.flow.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.name() == name:
                        found.append(process)
        return found

    def assert_nothing_confirmed_early(self) -> None:
        with contextlib.suppress(psycopg.OperationalError):
            self.flow.assert_nothing_confirmed_early()

    def assert_everything_is_right(self) -> dict[str, int]:
        """Every destination against the source; returns what was compared."""
        assert_duckdb_equals_source(self.flow)
        assert_log_is_exact(self.flow)
        rows = self._assert_copy_is_equal()
        changes, arrived = self._assert_hook_has_all()
        return {"rows": rows, "changes": changes, "requests": arrived}

    def _assert_copy_is_equal(self) -> int:
        rows = 0
        for table, key in TABLES.items():
            query = f"select t::text from {table} t order by {key}"
            expected = self.flow.database.rows(query)
            assert self.target.rows(query) == expected, table
            rows += len(expected)
        return rows

    def _assert_hook_has_all(self) -> tuple[int, int]:
        arrived = self.hook.changes()
        first: dict[str, dict[str, Any]] = {}
        for change in arrived:
            first.setdefault(change["event_id"], change)
        logged = {e for t in TABLES for e in change_log(self.flow, t.strip('"').replace('""', '"'))["__event_id"].to_pylist()}
        missing, surplus = logged - first.keys(), first.keys() - logged
        assert not missing and not surplus, f"{len(missing)} changes never arrived, {len(surplus)} never happened"
        last: dict[tuple[str, str], tuple[int, int]] = {}
        for change in first.values():
            place = change["position"].split("/")
            at = (int(place[0], 16) << 32 | int(place[1], 16), change["ordinal"])
            key = (change["table"], json.dumps(change["key"]))
            assert last.get(key, (0, 0)) < at, f"{key} out of order"
            last[key] = at
        return len(logged), len(arrived)


@contextlib.contextmanager
def steady_load(database: Database, seed: int) -> Iterator[list[int]]:
    """Writes that outlive the server's death; yields the count of commits. What else ends them is the test's failure."""
    done, commits = threading.Event(), [0]
    failure: list[BaseException] = []

    def work() -> None:
        chance = random.Random(seed)
        while not done.is_set():
            try:
                with psycopg.connect(database.dsn, connect_timeout=5) as connection:
                    while not done.is_set():
                        for _ in range(chance.choice((1, 1, 1, 3, 30))):
                            one_write(connection, chance)
                        connection.execute("insert into steps select coalesce(max(n), 0) + 1 from steps")
                        if chance.random() < 0.1:
                            connection.rollback()
                        else:
                            connection.commit()
                            commits[0] += 1
                        time.sleep(0.01)
            except psycopg.OperationalError:
                time.sleep(0.2)
            except BaseException as error:
                failure.append(error)
                return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield commits
    finally:
        done.set()
        thread.join(60)
        if failure:
            raise failure[0]
