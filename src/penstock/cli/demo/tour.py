"""One run of the demo: server, load and flow together, then the verdict."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.live import Live

from penstock.cli.demo import shop, view
from penstock.cli.demo.compare import compare, count_changes
from penstock.cli.demo.generator import LoadGenerator
from penstock.cli.screen import Screen
from penstock.cli.stopping import Running
from penstock.control.validate import validate
from penstock.core.flow import Flow
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import EngineError, FlowInvalid, PenstockError, from_data
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource

if TYPE_CHECKING:
    from penstock.engine.worker import Worker

DRAIN_SECONDS = 120.0


class Tour:
    """One run of the demo in its directory."""

    def __init__(self, screen: Screen, directory: Path, asked: threading.Event) -> None:
        self._screen, self._asked = screen, asked
        self._directory = directory
        self._warehouse, self._changes = directory / "shop.duckdb", directory / "changes"

    def run(self, seconds: int | None, rate: float) -> bool:
        """Whether everything that the load did has arrived."""
        self._screen.line("Starting a private PostgreSQL with a small shop …")
        with EmbeddedPostgres(settings={"fsync": "off"}) as server:
            server.run("CREATE DATABASE shop")
            server.run(shop.SCHEMA, "shop")
            dsn = server.dsn("shop")
            for text in view.picture(f"{server.host}:{server.port}, database shop", str(self._warehouse), str(self._changes)):
                self._screen.line(text)
            flow = self._flow(dsn)
            source = PostgresSource(flow.name, PostgresOptions.model_validate(flow.source.options))
            try:
                # The slot first: without a first load only what happens after it is seen.
                source.prepare(None)
                self._follow(flow, source, dsn, seconds, rate)
            finally:
                source.close()
            return self._verdict(dsn)

    def _flow(self, dsn: str) -> Flow:
        raw = shop.flow(dsn, str(self._warehouse), str(self._changes))
        shown = shop.flow("${env:SHOP_DSN}", str(self._warehouse), str(self._changes))
        (self._directory / "flow.yaml").write_text(yaml.safe_dump(shown, sort_keys=False))
        flow, problems, _ = validate(raw, strict=True)
        if flow is None:
            raise FlowInvalid.of("demo", problems)
        return flow

    def _follow(self, flow: Flow, source: PostgresSource, dsn: str, seconds: int | None, rate: float) -> None:
        from penstock.engine.worker import Worker

        worker = Worker(flow, self._directory / "state")
        running = Running("worker", lambda: worker.run(None))
        try:
            with LoadGenerator(dsn, rate) as load:
                self._watch(worker, running, load, seconds)
                self._screen.line("Stopping the load and letting the destinations catch up …")
                load.stop()
                counts = load.counts
            self._drain(worker, running, source.head())
            self._screen.line(_summary(counts))
        finally:
            worker.stop()
            with contextlib.suppress(PenstockError) if sys.exc_info()[0] else contextlib.nullcontext():
                running.wait(60)

    def _watch(self, worker: Worker, running: Running, load: LoadGenerator, seconds: int | None) -> None:
        start = time.monotonic()
        hint = "Ctrl-C stops the load and compares both sides." if seconds is None else f"Ends after {seconds} s, or with Ctrl-C."
        show: contextlib.AbstractContextManager[Live | None] = contextlib.nullcontext()
        if self._screen.is_terminal:
            show = Live(console=self._screen.console, refresh_per_second=4, transient=False)
        with show as screen:
            said = 0.0
            while not self._asked.wait(0.25) and not load.has_ended and not running.wait(0):
                passed = time.monotonic() - start
                if screen is not None:
                    screen.update(view.live(worker.status(), load.counts, load.rate, passed, hint))
                elif passed - said >= 2:
                    said = passed
                    self._screen.line(view.line(worker.status(), load.counts, load.rate, passed))
                if seconds is not None and passed >= seconds:
                    return
                _behind(worker, 0)

    def _drain(self, worker: Worker, running: Running, head: int) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while behind := _behind(worker, head):
            if running.wait(0):
                raise EngineError("The worker ended before everything had arrived.", remedy="Its log says why.")
            if time.monotonic() > deadline:
                missing = " and ".join(behind)
                raise EngineError(
                    f"After {DRAIN_SECONDS:.0f} s not everything had arrived at {missing}.", remedy="The log says why."
                )
            time.sleep(0.05)

    def _verdict(self, dsn: str) -> bool:
        self._screen.line()
        self._screen.line("Source and DuckDB compared, all rows and columns:", "bold")
        verdicts = compare(dsn, self._warehouse, list(shop.TABLES))
        for v in verdicts:
            sign, style = ("✓", "green") if v.equal else ("✗", "red")
            detail = "equal" if v.equal else f"{v.different:,} rows differ"
            self._screen.line(f"  {sign} {v.table}: {v.source_rows:,} rows in PostgreSQL, {v.rows:,} in DuckDB, {detail}", style)
        files, changes, twice = count_changes(self._changes)
        once = "each exactly once" if not twice else f"{twice:,} of them more than once"
        self._screen.line(
            f"  {'✗' if twice else '✓'} change log: {changes:,} changes in {files:,} Parquet files, {once}",
            "red" if twice else "green",
        )
        equal = all(v.equal for v in verdicts) and not twice
        self._screen.line()
        self._screen.line(
            "Everything arrived." if equal else "Not everything arrived as it should.", "bold green" if equal else "bold red"
        )
        for what, path in (("DuckDB", self._warehouse), ("Parquet", self._changes), ("flow", self._directory / "flow.yaml")):
            self._screen.line(f"  {what:<8} {path}")
        return equal


def _behind(worker: Worker, head: int) -> list[str]:
    """Destinations that have not reached `head`; raises the error of one that has given up."""
    found = {d.name: d for d in worker.status().destinations}
    for status in found.values():
        if status.state == "failed" and status.error is not None:
            raise from_data(status.error)
    return [use.name for use in worker.flow.destinations if use.name not in found or found[use.name].position < head]


def _summary(counts: Mapping[str, int]) -> str:
    done = ", ".join(f"{counts.get(kind, 0):,} {kind}s" for kind in ("insert", "update", "delete"))
    return f"The load: {done} in {counts.get('commits', 0):,} commits; {counts.get('rollbacks', 0):,} transactions rolled back."
