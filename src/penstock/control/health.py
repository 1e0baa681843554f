"""Health: how a flow goes, which is another question than its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.control.answers import Health

LAGGING = 60.0
"""Seconds that the oldest change may wait for a destination before the flow counts as lagging."""


def health(state: str, wished: str, destinations: Iterable[Mapping[str, Any]]) -> Health | None:
    """How a flow goes; None while it is not meant to run. `destinations` have `state` and `lag_seconds`."""
    if wished == "stopped":
        return None
    if state in ("failed", "gone", "silent"):
        return "stalled"
    found = list(destinations)
    if any(d["state"] in ("retrying", "failed") for d in found):
        return "degraded"
    if wished != "paused" and any((d["lag_seconds"] or 0.0) > LAGGING for d in found):
        return "lagging"
    return "ok" if state in ("running", "paused") else None
