"""`penstock up` with idle flows: seconds until the first answer, percent of a core, memory of the whole process tree."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from penstock.client import Client
from penstock.embedded.postgres import EmbeddedPostgres


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--launcher", default="embedded")
    parser.add_argument("--grpc", default="", help="none leaves gRPC out")
    parser.add_argument("--flows", default="2", help="how many; 0,2,4 also says what each costs")
    parser.add_argument("--settle", type=float, default=80, help="seconds until what starting has left is gone")
    given = parser.parse_args()
    counts = [int(count) for count in given.flows.split(",")]
    found = [_run(count, given) for count in counts]
    for (fewer, before), (more, after) in itertools.pairwise(zip(counts, found, strict=True)):
        cpu, memory = ((late - early) / (more - fewer) for early, late in zip(before, after, strict=True))
        print(f"from {fewer} to {more} flows: each {cpu:.2f} % of a core, PSS {memory:.0f} MB")


def _run(count: int, given: argparse.Namespace) -> tuple[float, float]:
    """Percent of a core and PSS in MB with so many idle flows."""
    with EmbeddedPostgres() as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "penstock", "up", "--state", directory, "--listen", f"127.0.0.1:{port}"]
        command += ["--launcher", given.launcher, "--log-level", "warning"]
        command += ["--grpc-listen", given.grpc] if given.grpc else []
        environment = {**os.environ, "SHOP_DSN": server.dsn("postgres")}
        began = time.monotonic()
        process = subprocess.Popen(command, env=environment)
        names = [f"flow{number}" for number in range(count)]
        try:
            _wait_for_answer(url)
            print(f"{count} flows: first answer after {time.monotonic() - began:.2f} s", flush=True)
            with Client(url) as plane:
                for name in names:
                    server.run(f"create table {name} (id int primary key)")
                    plane.create_flow(_flow(name, name, directory), start=True)
                deadline = time.monotonic() + 120
                while any(plane.flow(name).state != "running" for name in names) and time.monotonic() < deadline:
                    time.sleep(0.2)
                print(f"{count} flows: all run after {time.monotonic() - began:.1f} s", flush=True)
            time.sleep(given.settle if count else 5)
            return _measure(process.pid, given.seconds)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _flow(name: str, table: str, directory: str) -> dict[str, object]:
    options = {"dsn": "${env:SHOP_DSN}", "publication_tables": [f"public.{table}"]}
    place = {"path": str(Path(directory) / f"{name}.duckdb")}
    return {
        "name": name,
        "source": {"type": "postgres", "options": options},
        "destinations": [{"name": "warehouse", "type": "duckdb", "options": place}],
    }


def _wait_for_answer(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=1) as answer:
                assert json.load(answer)["status"] == "ok"
                return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(url)


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _measure(pid: int, seconds: float) -> tuple[float, float]:
    root = psutil.Process(pid)
    tree = [root, *root.children(recursive=True)]
    before = {p.pid: sum(p.cpu_times()[:2]) for p in tree}
    time.sleep(seconds)
    total, pss, rss, alive = 0.0, 0, 0, 0
    for p in tree:
        try:
            if p.status() == psutil.STATUS_ZOMBIE:
                continue
            used, memory, words = sum(p.cpu_times()[:2]) - before[p.pid], p.memory_full_info(), " ".join(p.cmdline())[:70]
        except psutil.NoSuchProcess:
            # Spark lets Python processes go that had nothing to do for a minute.
            continue
        total, pss, rss, alive = total + used, pss + memory.pss, rss + memory.rss, alive + 1
        print(f"  {100 * used / seconds:5.2f} %  RSS {memory.rss >> 20:4} MB  PSS {memory.pss >> 20:4} MB  {words}")
    print(f"idle: {100 * total / seconds:.2f} % of a core, PSS {pss >> 20} MB, RSS {rss >> 20} MB, {alive} processes")
    return 100 * total / seconds, pss / (1 << 20)


if __name__ == "__main__":
    main()
