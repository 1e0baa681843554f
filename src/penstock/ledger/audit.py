"""The audit: who has asked for what, when, and what became of it; refusals too."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from penstock.ledger.database import LedgerDatabase

KEPT = 100_000
"""How many records are kept."""


@dataclass(frozen=True)
class Record:
    """One thing that somebody asked for."""

    id: int
    at: int
    who: str
    role: str
    action: str
    flow: str | None
    outcome: str
    """`done`, or the code of the refusal."""
    detail: str | None


class Audit:
    """The records of a ledger."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def write(self, who: str, role: str, action: str, flow: str | None, outcome: str, detail: str | None) -> None:
        """Keeps a record."""
        with self._database.transaction() as c:
            number = c.scalar(
                sa.text(
                    "insert into audit (at, who, role, action, flow, outcome, detail) values (:t, :w, :r, :a, :f, :o, :d)"
                    " returning id"
                ),
                {"t": time.time_ns() // 1000, "w": who, "r": role, "a": action, "f": flow, "o": outcome, "d": detail},
            )
            c.execute(sa.text("delete from audit where id <= :n"), {"n": int(number or 0) - KEPT})

    def page(self, before: int | None, limit: int, flow: str | None = None) -> list[Record]:
        """The newest records before that one, the newest first."""
        conditions = ["id < :b"] * (before is not None) + ["flow = :f"] * (flow is not None)
        where = f"where {' and '.join(conditions)}" if conditions else ""
        values = {"b": before, "f": flow, "n": limit}
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(f"select id, at, who, role, action, flow, outcome, detail from audit {where} order by id desc limit :n"),
                {k: v for k, v in values.items() if v is not None},
            ).all()
            return [Record(**row._mapping) for row in rows]
