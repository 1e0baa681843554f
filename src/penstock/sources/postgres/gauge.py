"""The gauge: positions seen from time to time become a rate and an age."""

from __future__ import annotations

from collections import deque

WINDOW = 60.0
"""Seconds over which the rate is measured."""
LEAST_WINDOW = 30.0
"""Seconds before there is a rate at all: one burst says nothing about the next half hour."""
MOST_SAMPLES = 2000


class Gauge:
    """What the log's head was, and when; memory is bounded, and old samples get coarser."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []
        self._recent: deque[tuple[float, int]] = deque()

    def note(self, now: float, head: int, confirmed: int) -> None:
        """One more sample; what lies at or before `confirmed` will not be asked for again."""
        self._samples = [s for s in self._samples if s[1] > confirmed]
        self._samples.append((now, head))
        if len(self._samples) > MOST_SAMPLES:
            self._samples = [*self._samples[:-2:2], self._samples[-1]]
        self._recent.append((now, head))
        while len(self._recent) > 2 and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()

    def rate(self) -> float:
        """Bytes a second that the log has grown by of late; 0 while that is not known."""
        (began, first), (now, last) = self._recent[0], self._recent[-1]
        return (last - first) / (now - began) if now - began >= LEAST_WINDOW else 0.0

    def age(self, now: float, confirmed: int) -> float:
        """For how long the head has been beyond `confirmed`; the log does not say it, so it is since it was first seen there."""
        return next((now - seen for seen, head in self._samples if head > confirmed), 0.0)
