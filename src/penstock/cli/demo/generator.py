"""The load's process as the demo holds it: started, read from, and ended for sure."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from penstock.errors import SourceFailed


class LoadGenerator:
    """The load as a child process; it ends with `stop`, with the block, or when this process dies (its input ends)."""

    def __init__(self, dsn: str, rate: float, seed: int = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.demo.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._input, self._output = self._process.stdin, self._process.stdout
        assert self._input is not None
        # Over the pipe and not the command line, which everybody can read.
        self._input.write(json.dumps({"dsn": dsn, "rate": rate, "seed": seed}) + "\n")
        self._input.flush()
        self.counts: dict[str, int] = {}
        self._seen: deque[tuple[float, int]] = deque(maxlen=8)
        self._reader = threading.Thread(target=self._read, name="load", daemon=True)
        self._reader.start()

    @property
    def rate(self) -> float:
        """Commits per second of the last few seconds."""
        if len(self._seen) < 2:
            return 0.0
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(last - first, 0.001)

    def stop(self) -> None:
        """Ends the load after its running transaction; SourceFailed when it had ended badly by itself."""
        if self._process.poll() is not None and self._process.returncode == 0:
            return
        with contextlib.suppress(OSError):
            assert self._input is not None
            self._input.close()
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join(5)
        if code != 0:
            assert self._process.stderr is not None
            last = (self._process.stderr.read().strip().splitlines() or [f"exit code {code}"])[-1]
            raise SourceFailed(f"The demo's load ended early: {last}", remedy="Run the demo again; --keep DIR keeps its logs.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def _read(self) -> None:
        assert self._output is not None
        with contextlib.suppress(ValueError, OSError):
            for text in self._output:
                self.counts = json.loads(text)
                self._seen.append((time.monotonic(), self.counts.get("commits", 0)))
