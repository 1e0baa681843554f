"""Launching: how a flow's worker comes to life. The contract, and the launcher that gives each flow a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

_OUT_BYTES = 1 << 20


class Run(Protocol):
    """A worker that was launched."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, however."""

    @property
    def outcome(self) -> str:
        """How it ended, in a few words; only asked when it is over."""

    def stop(self) -> None:
        """Asks it to end in order, and does not wait."""

    def kill(self) -> None:
        """Ends it at once; used when it was asked and did not follow."""


class Launcher(Protocol):
    """Starts workers of flows that are kept in the ledger.

    `launch` is called by one thread, never for a flow whose last run is not over, and returns at once: the worker takes the
    flow's lease by itself, and reads its definition from the ledger. It may be called for a flow that another process runs:
    the worker then waits, or ends. Whether a flow runs is told by its lease, never by the launcher.
    """

    @property
    def name(self) -> str:
        """One word for people."""

    def launch(self, flow: str, *, once: bool) -> Run:
        """Starts a worker; `once` has it end when nothing is left."""

    def close(self) -> None:
        """Gives back what all workers shared, after the last is over."""


class ProcessRun:
    """A worker in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def process_id(self) -> int:
        """The worker's process."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def outcome(self) -> str:
        """The process's end."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def stop(self) -> None:
        """Asks with SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends with SIGKILL; what the worker started is under guard and ends with it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)


class ProcessLauncher:
    """`penstock worker --flow NAME` for each flow. A worker outlives a server that is killed; the next one finds it running."""

    name = "process"

    def __init__(self, state: Path) -> None:
        self._state = state

    def launch(self, flow: str, *, once: bool) -> ProcessRun:
        """Starts the process, out of reach of the terminal's Ctrl-C; what it says before its log is open goes to a file."""
        # Nothing of the command comes from a request but the name, which is letters, digits, - and _.
        command = [sys.executable, "-m", "penstock", "worker", f"--flow={flow}", f"--state={self._state}"]
        command += ["--max-empty-reads=2"] if once else []
        logs = self._state / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        out = logs / f"worker-{flow}.out"
        mode = "ab" if out.exists() and out.stat().st_size < _OUT_BYTES else "wb"
        environment = {key: value for key, value in os.environ.items() if key != "PENSTOCK_TOKEN"}
        with out.open(mode) as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment
            )
        return ProcessRun(process)

    def close(self) -> None:
        """Nothing is shared."""
