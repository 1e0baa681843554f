"""One destination in trouble: what it costs the one beside it, in latency, against an undisturbed run with the same pair.

The neighbour is a Parquet log; the one in trouble is a web hook that refuses, hangs, takes a row a second, flaps, or fails after
it has taken the change. `ack_policy: primary` names the log, so that the slot moves on; how far the server was told is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.latency import TABLE, Clock, lags, press
from bench.processes import wait_until
from bench.workload import PUBLICATION
from penstock.core.flow import Flow
from penstock.core.position import parse_lsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.worker import Worker

TROUBLES = ("none", "refused", "hung", "slow", "flapping", "after")
OK, BUSY = b"HTTP/1.1 204 x\r\n\r\n", b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"


async def serve(trouble: str, port: int) -> None:
    """A web hook with that trouble."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(length)
                if trouble == "hung":
                    await asyncio.sleep(3600)
                if trouble == "slow":
                    await asyncio.sleep(1.0)
                if trouble == "after":
                    break
                failing = trouble == "flapping" and time.time() % 4 < 2
                writer.write(BUSY if failing else OK)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def hook(trouble: str) -> Iterator[int]:
    """The port of a web hook in a process of its own; nobody listens there when it refuses."""
    process = subprocess.Popen([sys.executable, "-m", "bench.disturbed", "--serve", trouble], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    if trouble == "refused":
        process.kill()
        process.wait()
    try:
        yield port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run(server: EmbeddedPostgres, trouble: str, rate: int, seconds: float, warm: float) -> tuple[float, float]:
    """p50 and p99 of the log in ms, beside a web hook with that trouble."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory, hook(trouble) as port:
        path = Path(directory)
        source = {"dsn": server.dsn("postgres"), "publication": PUBLICATION, "ensure_publication": False, "snapshot": "never"}
        web = {"url": f"http://127.0.0.1:{port}/", "timeout": "5s"}
        flow = Flow.model_validate(
            {
                "name": f"disturbed_{trouble}",
                "source": {"type": "postgres", "options": source},
                "destinations": [
                    {"name": "log", "type": "files", "options": {"path": str(path / "log")}, "batch": {"max_wait": "0ms"}},
                    {"name": "hook", "type": "http", "options": web, "batch": {"max_rows": 1000}},
                ],
                "config": {"ack_policy": "primary", "primary_destination": "log", "give_up_policy": "never"},
            }
        )
        worker = Worker(flow, path / "state")
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            wait_until(lambda: [d for d in worker.status().destinations if d.name == "log" and d.state == "ok"], 60, "start")
            wait_until(worker.is_ready, 120, "lanes do not stand")
            clock = Clock(worker)
            press(server, rate, warm)
            began = time.time()
            press(server, rate, seconds)
            ended = time.time()
            time.sleep(1.0)
            found = lags(path, flow.destinations[0], clock, began, ended)
            status = worker.status()
            head = parse_lsn(str(server.run("select pg_current_wal_flush_lsn()::text")[0][0]))
            other = next(d for d in status.destinations if d.name == "hook")
            print(
                f"{trouble}: log p50 {found[0]:.1f} ms, p99 {found[2]:.1f} | hook {other.state}, {sum(other.rows.values())} rows,"
                f" attempts {other.attempts} | server told up to {head - status.confirmed:,} bytes behind its end",
                flush=True,
            )
        finally:
            worker.stop()
            thread.join()
        return found[0], found[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=TROUBLES, help="be the web hook (used by the bench itself)")
    parser.add_argument("--troubles", default=",".join(TROUBLES))
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--warm", type=float, default=8)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve, 0))
        return
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        server.run(TABLE)
        server.run(f"create publication {PUBLICATION} for table lat")
        calm: tuple[float, float] | None = None
        for trouble in given.troubles.split(","):
            found = run(server, trouble, given.rate, given.seconds, given.warm)
            calm = calm or found
            print(f"  against the undisturbed run: p50 {found[0] / calm[0]:.2f}, p99 {found[1] / calm[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
