"""The embedded launcher: every flow's worker in this process, with one Spark for all of them."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from penstock.control.stored import stored_flow
from penstock.core.flow import Flow
from penstock.engine.places import ledger_address
from penstock.engine.session import SparkHost
from penstock.engine.worker import Worker
from penstock.errors import PenstockError
from penstock.ledger.ledger import Ledger

_log = structlog.get_logger()


class EmbeddedRun:
    """A worker on a thread of this process."""

    def __init__(self, flow: str, state: Path, host: SparkHost, *, once: bool) -> None:
        self._flow, self._state, self._host, self._once = flow, state, host, once
        self._worker: Worker | None = None
        self._stopping = False
        self.outcome = "has ended"
        """How it ended."""
        self._thread = threading.Thread(target=self._run, name=f"worker {flow}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Asks the worker to end in order."""
        self._stopping = True
        if self._worker is not None:
            self._worker.stop()

    def kill(self) -> None:
        """A thread cannot be ended; its lease runs out with this process, and what it wrote by then is whole."""
        self.stop()

    def _run(self) -> None:
        try:
            self._worker = worker = Worker(self._definition(), self._state, reload=self._definition, host=self._host)
            if not self._stopping:
                worker.run(2 if self._once else None)
        except PenstockError as error:
            self.outcome = f"ended: {error.code}: {error.message}"
            _log.error("the worker ended", flow=self._flow, code=error.code, reason=error.message, remedy=error.remedy)
        except Exception as error:
            # One flow's surprise is not the others' end.
            self.outcome = f"ended: {type(error).__name__}"
            _log.exception("the worker ended unexpectedly", flow=self._flow)

    def _definition(self) -> Flow:
        ledger = Ledger(ledger_address(self._state))
        try:
            return stored_flow(ledger, self._flow)
        finally:
            ledger.close()


class EmbeddedLauncher:
    """Workers on threads; Spark starts with the first of them."""

    name = "embedded"

    def __init__(self, state: Path) -> None:
        self._state = state
        self.host = SparkHost(state / "run" / "@server")

    def launch(self, flow: str, *, once: bool) -> EmbeddedRun:
        """Starts the thread."""
        return EmbeddedRun(flow, self._state, self.host, once=once)

    @property
    def spark(self) -> str:
        """What Spark does: waiting for the first flow, starting, running."""
        return "running" if self.host.is_ready else "starting" if self.host.alive() else "waiting"

    def close(self) -> None:
        """Ends Spark."""
        self.host.stop()
