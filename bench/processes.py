"""CPU seconds and memory of the processes that take part, by what they are."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import psutil


def kind_of(process: psutil.Process) -> str:
    """What a process of ours is."""
    try:
        name, words = process.name(), " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
    if name == "postgres" and "walsender" not in words:
        return "server"
    if name == "java":
        return "jvm"
    if name in ("lane", "daemon"):
        return "lanes"
    if name == "capture" or "penstock.engine.cradle" in words:
        return "capture"
    if "walsender" in words:
        return "walsender"
    return "other"


class Meter:
    """CPU seconds of this process and its descendants by kind, and their peak memory (unshared), sampled."""

    def __init__(self, interval: float = 0.2) -> None:
        self._interval = interval
        self._done = threading.Event()
        self._cpu: dict[tuple[int, str], float] = {}
        self._base: dict[tuple[int, str], float] = {}
        self.peak: dict[str, float] = defaultdict(float)
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Meter:
        self._look()
        self._base = dict(self._cpu)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        self._done.set()
        self._thread.join()

    def cpu(self) -> dict[str, float]:
        """CPU seconds since the block began."""
        total: dict[str, float] = defaultdict(float)
        for key, seconds in self._cpu.items():
            total[key[1]] += seconds - self._base.get(key, 0.0)
        return {kind: round(seconds, 2) for kind, seconds in sorted(total.items()) if seconds > 0.005}

    def _sample(self) -> None:
        while not self._done.wait(self._interval):
            self._look()

    def _look(self) -> None:
        own = psutil.Process()
        everybody = [("driver", own)] + [(kind_of(p), p) for p in own.children(recursive=True)]
        everybody += [("walsender", p) for p in psutil.process_iter() if kind_of(p) == "walsender"]
        for kind, process in everybody:
            try:
                times = process.cpu_times()
                self._cpu[(process.pid, kind)] = times.user + times.system
                memory = process.memory_full_info().uss / 1e6
                self.peak[kind] = max(self.peak[kind], round(memory))
            except (psutil.Error, OSError):
                continue


def wait_until(claim: object, seconds: float, what: str, every: float = 0.02) -> None:
    """Polls a callable until it is true."""
    assert callable(claim)
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(every)
