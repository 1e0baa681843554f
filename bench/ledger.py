"""The ledger: what it costs to close an epoch and plan the next, on SQLite and PostgreSQL, against one fsynced insert; and a
page of a list of 10,000 flows."""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import sqlalchemy as sa

from penstock.core.epoch import Epoch
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Ledger
from penstock.ledger.postgres import SCHEMA


def measured(rounds: int, act: Callable[[int], object], server: psutil.Process | None = None) -> tuple[float, float, float]:
    """Milliseconds per act: CPU here, CPU of the server's process, wall time."""
    before = server.cpu_times() if server is not None else None
    cpu, wall = time.process_time(), time.perf_counter()
    for number in range(rounds):
        act(number)
    here, wall = time.process_time() - cpu, time.perf_counter() - wall
    there = 0.0
    if server is not None and before is not None:
        after = server.cpu_times()
        there = after.user + after.system - before.user - before.system
    return 1000 * here / rounds, 1000 * there / rounds, 1000 * wall / rounds


def closing(ledger: Ledger) -> Callable[[int], object]:
    """Closes epoch n and plans n + 1."""
    generation = ledger.take_over("bench", "5ec0ffee", "{}")
    ledger.begin("bench", "log", 0, generation)

    def epoch(number: int) -> Epoch:
        return Epoch("bench", "log", "5ec0ffee", number, number * 10, number * 10 + 10, 1, generation)

    state = [1]
    ledger.plan(epoch(1), 1)

    def act(_: int) -> None:
        number = state[0]
        ledger.close_epoch(epoch(number), generation, epoch(number + 1), 1)
        state[0] = number + 1

    return act


def floor(ledger: Ledger) -> tuple[Callable[[int], object], Any]:
    """One fsynced insert by the driver alone, over a connection of its own; and that connection."""
    with ledger._database.transaction() as c:
        c.exec_driver_sql("create table bench_floor (n bigint, note text)")
    fairy = ledger._database._backend.engine().raw_connection()
    raw: Any = fairy.dbapi_connection
    fairy.detach()
    mark = "?" if ledger._database.address.path is not None else "%s"
    sql = f"insert into bench_floor values ({mark}, {mark})"
    return lambda number: raw.execute(sql, (number, "x" * 100)), raw


def round_trips(ledger: Ledger, act: Callable[[int], object], directory: Path, rounds: int = 50) -> float:
    """How often a close waits for the server: messages of ours after which an answer is due."""
    path = directory / "trace"
    fairy = ledger._database._engine.raw_connection()
    raw: Any = fairy.dbapi_connection
    with path.open("wb") as file:
        raw.pgconn.trace(file.fileno())
        fairy.close()
        for number in range(rounds):
            act(number)
        raw.pgconn.untrace()
    return len(re.findall(r"F\t\d+\t(?:Sync|Query)", path.read_text())) / rounds


def fill(ledger: Ledger, count: int) -> None:
    """Flows with labels, as many as a big installation has."""
    flows = [{"n": f"flow-{i:06}", "d": json.dumps({"name": f"flow-{i:06}"}), "t": i} for i in range(count)]
    labels = [
        {"f": f"flow-{i:06}", "l": k, "v": v} for i in range(count) for k, v in (("team", f"t{i % 50}"), ("tier", f"{i % 3}"))
    ]
    with ledger._database.transaction() as c:
        c.execute(
            sa.text(
                "insert into flows (name, identity, definition, generation, state, updated_at)"
                " values (:n, 'x', :d, 1, 'running', :t)"
            ),
            flows,
        )
        c.execute(sa.text("insert into flow_labels (flow, label, value) values (:f, :l, :v)"), labels)


def pages(ledger: Ledger, rounds: int = 20) -> dict[str, float]:
    """Milliseconds of wall time for a page of 100, the median."""
    asked: dict[str, dict[str, Any]] = {
        "first": {},
        "in the middle": {"after": "flow-005000"},
        "by label": {"labels": {"team": "t7"}},
        "by two labels and state, in the middle": {
            "after": "flow-005000",
            "labels": {"team": "t7", "tier": "1"},
            "states": ["running"],
        },
        "by a label that nobody has": {"labels": {"team": "nobody"}},
    }
    found = {}
    for name, how in asked.items():
        taken = []
        for _ in range(rounds):
            began = time.perf_counter()
            ledger.flows.page(limit=100, **how)
            taken.append(1000 * (time.perf_counter() - began))
        found[name] = statistics.median(taken)
    return found


def report(kind: str, address: LedgerAddress, rounds: int, flows: int, directory: Path) -> float:
    """Prints one database's figures; returns CPU per close, here and on the server."""
    ledger = Ledger(address)
    act, server, trips = closing(ledger), None, ""
    insert, raw = floor(ledger)
    theirs = None
    if address.is_shared:
        with ledger._database.reading() as c:
            server = psutil.Process(int(c.scalar(sa.text("select pg_backend_pid()")) or 0))
        theirs = psutil.Process(raw.info.backend_pid)
        trips = f", {round_trips(ledger, act, directory):.2f} round trips"
    measured(50, act), measured(50, insert)
    least = measured(rounds, insert, theirs)
    here, there, wall = measured(rounds, act, server)
    print(
        f"{kind}: close and plan {here:.3f} ms CPU here + {there:.3f} ms server, {wall:.2f} ms wall{trips};"
        f" one fsynced insert {least[0]:.3f} + {least[1]:.3f} ms CPU, {least[2]:.2f} ms wall;"
        f" ratio CPU {(here + there) / (least[0] + least[1]):.1f}, wall {wall / least[2]:.2f}"
    )
    fill(ledger, flows)
    print(f"  a page of 100 of {flows} flows: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in pages(ledger).items()))
    raw.close()
    ledger.close()
    return here + there


def main() -> None:
    """Both databases in one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--flows", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres() as server:
        directory = Path(name)
        lite = report("sqlite", LedgerAddress(directory / "ledger.db"), given.rounds, given.flows, directory)
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())
        shared = report("postgres", LedgerAddress.parse(server.dsn()), given.rounds, given.flows, directory)
        print(f"postgres / sqlite: {shared / lite:.2f} of the CPU per close")


if __name__ == "__main__":
    main()
