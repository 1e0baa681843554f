"""What the lanes report of an epoch, summed, counted and, where values are not what the source has, said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog

from penstock.engine.status import DestinationStatus

_log = structlog.get_logger()

Sums = dict[str, Counter[str]]


def summed(receipts: Sequence[dict[str, Any]]) -> Sums:
    """The counters of all lanes together."""
    total: Sums = {"tables": Counter(), "counts": Counter(), "nulled": Counter()}
    for receipt in receipts:
        for kind, counter in total.items():
            counter.update(receipt.get(kind) or {})
    return total


class Tally:
    """Adds the epochs of one destination up in its status."""

    def __init__(self, status: DestinationStatus) -> None:
        self._status = status
        self._warned: set[str] = set()

    def add(self, sums: Sums) -> None:
        """An epoch that is closed."""
        for name, amount in sums.get("tables", {}).items():
            self._status.rows[name] = self._status.rows.get(name, 0) + amount
        for name, amount in sums.get("counts", {}).items():
            self._status.counts[name] = self._status.counts.get(name, 0) + amount
        self._warn_of(sums.get("nulled", Counter()))

    def _warn_of(self, nulled: Counter[str]) -> None:
        """Says once per table that values are not what the source has; `counts` says how often."""
        for table in nulled.keys() - self._warned:
            self._warned.add(table)
            _log.warning(
                "values written as NULL",
                destination=self._status.name,
                table=table,
                count=nulled[table],
                reason="their type at the destination cannot hold them, and on_unrepresentable is null",
                remedy="Further ones are counted only; on_unrepresentable: fail stops at the first.",
            )
