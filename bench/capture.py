"""Capture, fsync on, beside `pg_recvlogical -f /dev/null` on the same backlog, in turns: messages/s, time and CPU ratios."""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from bench.processes import wait_until
from bench.workload import PUBLICATION, make_backlog, make_server, make_table
from penstock.core.position import format_lsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.supervisor import CaptureSupervisor
from penstock.journal.reader import JournalTail
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource


def run_peer(server: EmbeddedPostgres, slot: str, end: int) -> tuple[float, float]:
    """Seconds and CPU seconds of pg_recvlogical."""
    command = [str(server.binary("pg_recvlogical")), "--start", "-S", slot, "-d", server.dsn("postgres"), "-f", "/dev/null"]
    command += ["-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}", f"--endpos={format_lsn(end)}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, check=True, env={"LD_LIBRARY_PATH": ""}, capture_output=True)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_capture(server: EmbeddedPostgres, slot: str, end: int) -> tuple[float, float, float, int]:
    """Seconds, CPU seconds of the drain, CPU seconds with the process's start, and changes, of our capture."""
    options = PostgresOptions(dsn=server.dsn("postgres"), slot=slot, publication=PUBLICATION, ensure_publication=False)
    source = PostgresSource("bench", options)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        supervisor = CaptureSupervisor(source, "postgres", Path(directory) / "journal", lambda: None)
        prepared, _, _ = supervisor.prepare()
        process = psutil.Process(supervisor.process_id)
        started = process.cpu_times()
        began = time.perf_counter()
        supervisor.begin(prepared)
        tail = JournalTail(Path(directory) / "journal", None)
        changes = 0

        def arrived() -> bool:
            nonlocal changes
            changes += sum(s.changes for s in tail.read())
            return tail.mark >= end

        wait_until(arrived, 300, "capture did not reach the end of the backlog")
        seconds = time.perf_counter() - began
        ended = process.cpu_times()
        supervisor.stop()
        tail.close()
    source.close()
    drain = ended.user + ended.system - started.user - started.system
    return seconds, drain, ended.user + ended.system, changes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with make_server() as server:
        make_table(server)
        for i in range(given.rounds):
            server.run(f"select pg_create_logical_replication_slot('peer{i}', 'pgoutput')")
            server.run(f"select pg_create_logical_replication_slot('ours{i}', 'pgoutput')")
        print(f"backlog: {given.rows:,} rows in one transaction, {given.updates:,} single-row updates", flush=True)
        end = make_backlog(server, given.rows, given.updates)
        messages = given.rows + 3 * given.updates + 2
        time_ratios, cpu_ratios = [], []
        for i in range(given.rounds):
            peer, peer_cpu = run_peer(server, f"peer{i}", end)
            ours, drain, total, changes = run_capture(server, f"ours{i}", end)
            assert changes == given.rows + given.updates + 1, changes
            time_ratios.append(ours / peer)
            cpu_ratios.append(drain / peer_cpu)
            print(
                f"round {i + 1}: pg_recvlogical {messages / peer:9,.0f} messages/s {peer:6.2f} s, {peer_cpu:5.2f} CPU s | "
                f"capture {messages / ours:9,.0f} messages/s {ours:6.2f} s, {drain:5.2f} CPU s ({total:.2f} with start) | "
                f"time {ours / peer:.2f}, CPU {drain / peer_cpu:.2f}",
                flush=True,
            )
        print(f"capture / pg_recvlogical: time {statistics.median(time_ratios):.2f}, CPU {statistics.median(cpu_ratios):.2f}")


if __name__ == "__main__":
    main()
