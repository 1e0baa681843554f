"""What a running worker tells about itself, for the terminal and for programs."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from penstock.sources.base import SourceHealth

State = Literal["starting", "ok", "retrying", "failed", "paused", "stopped"]


@dataclass
class DestinationStatus:
    """One destination's state; written by its loop, read by anybody."""

    name: str
    type: str
    state: State = "starting"
    position: int = 0
    """The checkpoint: durable at the destination and in the ledger."""
    lag_seconds: float = 0.0
    """Age of the oldest change that is journalled and not delivered; of the last epoch's when none waits."""
    rows: dict[str, int] = field(default_factory=dict)
    """Changes delivered since the start, by table."""
    counts: dict[str, int] = field(default_factory=dict)
    """Things that must be counted, such as values written as NULL by policy."""
    letters: int = 0
    """Dead letters: changes that are set aside now."""
    epochs: int = 0
    epochs_per_second: float = 0.0
    attempts: int = 0
    since: float = field(default_factory=time.time)
    """When the present state began (Unix time)."""
    next_try: float | None = None
    """When a destination that failed is tried again (Unix time)."""
    error: dict[str, object] | None = None
    """Code, message and remedy of what is wrong now."""

    def become(self, state: State, error: dict[str, object] | None = None, next_try: float | None = None) -> None:
        """Notes the state, since when, and why."""
        if state != self.state:
            self.state, self.since = state, time.time()
        self.error, self.next_try = error, next_try


@dataclass(frozen=True)
class WorkerStatus:
    """A moment of a worker."""

    flow: str
    journal_bytes: int
    journal_mark: int
    """Everything that committed up to here is in the journal."""
    confirmed: int
    """What the source has been told."""
    destinations: list[DestinationStatus]
    source: SourceHealth | None = None
    """What the last look at the source has seen; None before the first."""
    source_trouble: str | None = None
    """What keeps the source from being looked at now."""


class Rate:
    """Events per second over the last few seconds."""

    def __init__(self, window: float = 5.0) -> None:
        self._window = window
        self._times: deque[float] = deque(maxlen=10000)

    def count(self, now: float) -> None:
        """Notes an event."""
        self._times.append(now)

    def per_second(self, now: float) -> float:
        """The rate now."""
        while self._times and now - self._times[0] > self._window:
            self._times.popleft()
        return len(self._times) / self._window
