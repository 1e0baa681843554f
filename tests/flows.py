"""A flow under test: its file, its worker process, a load on its source, and the comparison afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import yaml

from penstock.cli.files import running_flow
from penstock.cli.stopping import Running
from penstock.core.position import parse_lsn
from penstock.destinations.files.reader import read_changes
from penstock.engine.worker import Worker
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.sparks import shared_spark

SCHEMA = """
create table accounts (id int primary key, v int not null, amount numeric(12,2), big text, at timestamptz);
alter table accounts alter big set storage external;
create table lines (a int, b text, v int, primary key (a, b));
create table "We""ird; table" ("Id" int primary key, "a b" text);
create table steps (n int primary key)
"""


def wait_until(claim: Callable[[], bool], seconds: float, what: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.02)


class FlowUnderTest:
    """A flow to DuckDB and to Parquet files, run by `penstock worker` in a process of its own."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        *,
        parallelism: int = 2,
        max_wait: str = "100ms",
        more: Sequence[dict[str, Any]] = (),
        config: dict[str, Any] | None = None,
        **source: Any,
    ) -> None:
        """`more` are destinations beside these two. `max_wait` keeps a constant load from taking the whole machine."""
        self.database = database
        self.directory = directory
        self.state = directory / "state"
        self.duckdb = directory / "shop.duckdb"
        self.files = directory / "log"
        self.path = directory / "flow.yaml"
        definition = {
            "name": f"f_{database.name}",
            "source": {"type": "postgres", "options": {"dsn": database.dsn, "snapshot": "never", **source}},
            "destinations": [
                {"name": "warehouse", "type": "duckdb", "options": {"path": str(self.duckdb)}, "batch": {"max_wait": max_wait}},
                {"name": "log", "type": "files", "options": {"path": str(self.files)}, "batch": {"max_wait": max_wait}},
                *more,
            ],
            "config": config or {},
            "parallelism": parallelism,
        }
        self.name = str(definition["name"])
        self._count = 2 + len(more)
        self.path.write_text(yaml.safe_dump(definition))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def slot(self) -> str:
        return f"penstock_{self.name}"

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock", "worker", "--flow", str(self.path), "--state", str(self.state), *arguments]
        with (self.directory / "worker.out").open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self.process

    def output(self) -> str:
        return (self.directory / "worker.out").read_text()[-4000:]

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def make_slot(self) -> None:
        """Publication and slot as the worker would make them at its first start."""
        definition = yaml.safe_load(self.path.read_text())
        source = PostgresSource(self.name, PostgresOptions(**definition["source"]["options"]))
        source.prepare(None)
        source.close()

    def drain(self, seconds: float = 180) -> None:
        """Delivers what is left with a worker inside this process, on the Spark that tests share."""
        # A worker's process is seven seconds of CPU, most of it for a JVM and its Python; the ways of a process to end are
        # the claims of other tests.
        worker = Worker(running_flow(self.path), self.state, host=shared_spark())
        running = Running("worker", lambda: worker.run(2, wait=True))
        try:
            assert running.wait(seconds), f"not drained within {seconds} s: {self.output()}"
        finally:
            worker.stop()
            running.wait(30)

    def run_out(self, seconds: float = 180) -> None:
        """Delivers what is left with a worker's process, whose output and exit code are part of the claim."""
        process = self.start("--max-empty-reads", "2")
        try:
            assert process.wait(seconds) == 0, self.output()
        finally:
            if process.poll() is None:
                process.kill()

    def checkpoints(self) -> dict[str, int]:
        path = self.state / "ledger.db"
        if not path.exists():
            return {}
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
            try:
                return dict(connection.execute("select destination, position from checkpoints").fetchall())
            except sqlite3.OperationalError:
                return {}

    def confirmed(self) -> int | None:
        """What the server holds as confirmed; None while there is no slot."""
        rows = self.database.rows("select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", self.slot)
        return parse_lsn(rows[0][0]) if rows else None

    def assert_nothing_confirmed_early(self) -> None:
        """The server may not know more than the ledger: read the server first, the ledger afterwards only grows."""
        confirmed = self.confirmed()
        checkpoints = self.checkpoints()
        if confirmed is not None and len(checkpoints) == self._count:
            assert confirmed <= min(checkpoints.values()), (confirmed, checkpoints)

    def delivered(self) -> int:
        return min(self.checkpoints().values(), default=0)

    def wait_for_progress(self, seconds: float = 90, *names: str) -> None:
        """Until both destinations, or those of these names, have moved past where the source's log ends now."""
        head = parse_lsn(str(self.database.rows("select pg_current_wal_flush_lsn()::text")[0][0]))

        def reached() -> bool:
            checkpoints = self.checkpoints()
            return min((checkpoints[n] for n in names or checkpoints), default=0) >= head

        wait_until(lambda: reached() or self._ended(), seconds, f"no progress: {self.output()}")

    def _ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None


def source_rows(database: Database, table: str, key: str) -> list[tuple[Any, ...]]:
    return database.rows(f"select * from {table} order by {key}")


def assert_duckdb_equals_source(flow: FlowUnderTest) -> None:
    """Row for row, column for column."""
    with contextlib.closing(duckdb.connect(str(flow.duckdb), read_only=True)) as connection:
        connection.execute("set timezone = 'UTC'")
        for table, key in (("accounts", "id"), ("lines", "a, b"), ('"We""ird; table"', '"Id"'), ("steps", "n")):
            expected = source_rows(flow.database, table, key)
            found = connection.execute(f"select * from public.{table} order by {key}").to_arrow_table().to_pylist()
            names = [str(r[0]) for r in connection.execute(f"describe public.{table}").fetchall()]
            rows = [tuple(row[n] for n in names) for row in found]
            missing, surplus = set(expected) - set(rows), set(rows) - set(expected)
            assert rows == expected, f"{table}: missing {_short(missing)}, surplus {_short(surplus)}"


def _short(rows: set[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    return [tuple(str(value)[:30] for value in row) for row in sorted(rows, key=str)[:5]]


def change_log(flow: FlowUnderTest, table: str) -> pa.Table:
    return pa.Table.from_batches(list(read_changes(flow.files, "public", table)))


def assert_log_is_exact(flow: FlowUnderTest) -> None:
    """Each (position, ordinal) once over all tables, in order per key, and the log replayed is the source."""
    seen: set[tuple[int, int]] = set()
    for table, keys in (("accounts", ["id"]), ("lines", ["a", "b"]), ('We"ird; table', ["Id"]), ("steps", ["n"])):
        log = change_log(flow, table).select(["__op", "__position", "__ordinal", "__before", "__unchanged", *keys])
        state: set[tuple[Any, ...]] = set()
        last: dict[tuple[Any, ...], tuple[int, int]] = {}
        for row in log.to_pylist():
            identity = (row["__position"], row["__ordinal"])
            assert identity not in seen, f"{table}: {identity} twice"
            seen.add(identity)
            key = tuple(row[k] for k in keys)
            if row["__op"] == "truncate":
                state.clear()
                continue
            assert last.get(key, (0, 0)) < identity, f"{table}: {key} out of order"
            last[key] = identity
            if row["__before"] is not None and row["__op"] == "update":
                state.discard(tuple(row["__before"][k] for k in keys))
            if row["__op"] == "delete":
                state.discard(key)
            else:
                state.add(key)
        quoted = '"' + table.replace('"', '""') + '"'
        columns = ", ".join(f'"{k}"' for k in keys)
        assert state == set(flow.database.rows(f"select {columns} from {quoted}")), table


@contextlib.contextmanager
def load(database: Database, seed: int, pause: float = 0.004) -> Iterator[list[int]]:
    """Constant random writes: inserts, updates, key changes, deletes, rollbacks, truncates; yields the count of commits."""
    done = threading.Event()
    commits = [0]
    failure: list[BaseException] = []

    def work() -> None:
        try:
            chance = random.Random(seed)
            with psycopg.connect(database.dsn) as connection:
                while not done.is_set():
                    for _ in range(chance.choice((1, 1, 1, 3, 30))):
                        one_write(connection, chance)
                    if chance.random() < 0.1:
                        connection.rollback()
                    else:
                        connection.execute("insert into steps select coalesce(max(n), 0) + 1 from steps")
                        connection.commit()
                        commits[0] += 1
                    time.sleep(pause)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield commits
    finally:
        done.set()
        thread.join()
        if failure:
            raise failure[0]


def one_write(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    number, other, kind = chance.randrange(300), chance.randrange(300), chance.random()
    if kind < 0.35:
        connection.execute(
            "insert into accounts values (%s, %s, %s, repeat(%s, 700), clock_timestamp())"
            " on conflict (id) do update set v = excluded.v, big = excluded.big",
            (number, other, number / 7, chance.choice("abcd") * 4),
        )
    elif kind < 0.6:
        connection.execute("update accounts set v = v + 1 where id = %s", (number,))
    elif kind < 0.68:
        connection.execute(
            "update accounts set id = %s where id = %s and not exists (select from accounts where id = %s)",
            (other, number, other),
        )
    elif kind < 0.75:
        connection.execute("delete from accounts where id = %s", (number,))
    elif kind < 0.9:
        connection.execute(
            "insert into lines values (%s, %s, %s) on conflict (a, b) do update set v = lines.v + 1",
            (number % 40, f"b{other % 5}", number),
        )
    elif kind < 0.93:
        place = (number % 40, f"b{other % 5}")
        connection.execute(
            "update lines l set b = b || 'x' where a = %s and b = %s"
            " and not exists (select from lines o where o.a = l.a and o.b = l.b || 'x')",
            place,
        )
    elif kind < 0.998:
        connection.execute(
            'insert into "We""ird; table" values (%s, %s) on conflict ("Id") do update set "a b" = excluded."a b"',
            (number, f"{other}"),
        )
    else:
        connection.execute('truncate "We""ird; table"')
