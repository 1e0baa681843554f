"""An epoch: the span of the log that one destination takes in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.position import Span


@dataclass(frozen=True)
class Epoch:
    """What was planned and recorded before any of it ran; a replay has the same fields, whoever runs it.

    `source` is the source's identity as it enters event ids; `generation` is that of the worker which planned it.
    """

    flow: str
    destination: str
    source: str
    number: int
    after: int
    upto: int
    buckets: int
    generation: int

    @property
    def span(self) -> Span:
        """The stretch of the log."""
        return Span(self.after, self.upto)

    def to_data(self) -> dict[str, Any]:
        """Plain data for a lane or the ledger."""
        # asdict copies every value, which showed in the profile of a small epoch.
        return dict(vars(self))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Epoch:
        """The epoch that `to_data` described."""
        return cls(**data)
