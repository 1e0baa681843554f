"""An epoch: the span of the log that one destination takes in one go."""

from __future__ import annotations

import json
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
    after_part: int = 0
    """How many changes of the transaction that follows `after` earlier epochs have taken."""
    upto_part: int = 0
    """How many changes of the transaction that follows `upto` are taken with it; 0 but for an epoch that ends inside of one."""
    work: str | None = None
    """What it does beside, or instead of, its span, as the ledger keeps it (JSON); None for all of the span and nothing else."""

    @property
    def span(self) -> Span:
        """The stretch of the log."""
        return Span(self.after, self.upto)

    @property
    def is_side(self) -> bool:
        """Whether it stands beside the stream: it takes part of a load, and does not move the destination's position."""
        return self.work is not None and self.work.startswith('{"side"')

    @property
    def side(self) -> dict[str, Any]:
        """What such an epoch does."""
        found: dict[str, Any] = json.loads(self.work or "{}")["side"]
        return found

    def to_data(self) -> dict[str, Any]:
        """Plain data for a lane or the ledger."""
        # asdict copies every value, which showed in the profile of a small epoch.
        return dict(vars(self))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Epoch:
        """The epoch that `to_data` described."""
        return cls(**data)
