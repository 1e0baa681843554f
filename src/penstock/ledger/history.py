"""The history of checkpoints: the closed epochs that moved them."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from penstock.ledger.database import LedgerDatabase


@dataclass(frozen=True)
class ClosedEpoch:
    """What moved a destination's checkpoint from `after` to `upto`."""

    destination: str
    number: int
    after: int
    upto: int
    changes: int
    generation: int
    planned_at: int
    closed_at: int


class History:
    """Reads that nobody waits for."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def epochs(self, flow: str, destination: str | None, limit: int) -> list[ClosedEpoch]:
        """The newest closed epochs of the flow, or of one of its destinations, the newest first."""
        only = " and destination = :d" if destination is not None else ""
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(
                    "select destination, number, after, upto, changes, generation, planned_at, closed_at from epochs"
                    f" where flow = :f and state = 'closed' and closed_at is not null{only}"
                    " order by closed_at desc, destination, number desc limit :n"
                ),
                {"f": flow, "n": limit, **({"d": destination} if destination is not None else {})},
            ).all()
        return [ClosedEpoch(**row._mapping) for row in rows]
