"""Quarantined tables in the ledger: what failed for good at one destination, since when, and how much it has missed.

A table's state: `quarantined`; `asked` when an operator wants it released; `catching_up` with the epoch that brings what it
has missed. When that epoch is closed the row goes, and the table is live again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa

from penstock.ledger.database import LedgerDatabase

_FIELDS = (
    'flow, destination, schema_name as "schema", table_name as "table", code, reason, remedy, position, part, state, epoch,'
    " upto, upto_part, passed, since"
)
_ONE = "flow = :f and destination = :d and schema_name = :s and table_name = :n"

Fenced = Callable[[str, int], AbstractContextManager[sa.Connection]]


@dataclass(frozen=True)
class Quarantined:
    """A table that one destination passes over."""

    flow: str
    destination: str
    schema: str
    table: str
    code: str
    reason: str
    remedy: str
    position: int
    """Up to where the destination has its changes."""
    part: int
    """How many changes of the transaction that follows the position it has too."""
    state: str = "quarantined"
    epoch: int | None = None
    """The epoch that catches it up."""
    upto: int | None = None
    """Where that epoch's changes end."""
    upto_part: int | None = None
    passed: int = 0
    """Changes that were passed over."""
    since: int = 0
    """µs since 1970."""

    @property
    def name(self) -> tuple[str, str]:
        """Schema and table."""
        return self.schema, self.table

    @property
    def qualified(self) -> str:
        """`schema.table`."""
        return f"{self.schema}.{self.table}"

    @property
    def release_command(self) -> str:
        """What an operator does when the cause is mended."""
        return f"Then `penstock flow release {self.flow} --destination {self.destination} --table {self.qualified}`."


class Quarantines:
    """The quarantined tables of every flow."""

    def __init__(self, database: LedgerDatabase, fenced: Fenced) -> None:
        self._database, self._fenced = database, fenced

    def all(self, flow: str, destination: str | None = None) -> list[Quarantined]:
        """The tables of a flow, or of one of its destinations, by name."""
        where = "flow = :f" + (" and destination = :d" if destination is not None else "")
        keys = {"f": flow, "d": destination} if destination is not None else {"f": flow}
        with self._database.reading() as c:
            sql = f"select {_FIELDS} from quarantines where {where} order by destination, schema_name, table_name"
            return [Quarantined(**row._mapping) for row in c.execute(sa.text(sql), keys).all()]

    def admit(self, row: Quarantined, generation: int) -> None:
        """Quarantines a table from its position on; one that is quarantined already keeps that, and has another reason."""
        with self._fenced(row.flow, generation) as c:
            c.execute(
                sa.text(
                    "insert into quarantines (flow, destination, schema_name, table_name, code, reason, remedy, position, part,"
                    " state, passed, since) values (:f, :d, :s, :n, :code, :reason, :remedy, :p, :part, 'quarantined', 0, :t)"
                    " on conflict (flow, destination, schema_name, table_name) do update set state = 'quarantined',"
                    " code = excluded.code, reason = excluded.reason, remedy = excluded.remedy,"
                    " epoch = null, upto = null, upto_part = null"
                ),
                {
                    **_keys(row),
                    "code": row.code,
                    "reason": row.reason,
                    "remedy": row.remedy,
                    "p": row.position,
                    "part": row.part,
                    "t": time.time_ns() // 1000,
                },
            )

    def count(
        self,
        flow: str,
        destination: str,
        generation: int,
        epoch: int,
        passed: Mapping[tuple[str, str], int],
        *,
        loads: bool = False,
    ) -> None:
        """Counts what an epoch passes over, before its commit; an epoch that is run again is counted once.

        `loads` says that they are rows of a load, which the journal does not have: the table has to be loaded anew then.
        """
        lost = ", position = 0, part = 0" if loads else ""
        with self._fenced(flow, generation) as c:
            for (schema, table), number in passed.items():
                c.execute(
                    sa.text(
                        f"update quarantines set counted = :c, counted_epoch = :e{lost},"
                        f" passed = passed + :c - case when counted_epoch = :e then counted else 0 end where {_ONE}"
                    ),
                    {"f": flow, "d": destination, "s": schema, "n": table, "c": number, "e": epoch},
                )

    def ask(self, row: Quarantined) -> bool:
        """Asks for a table's release; false when there is nothing to release any more."""
        with self._database.transaction() as c:
            sql = f"update quarantines set state = 'asked' where {_ONE} and state = 'quarantined'"
            return c.execute(sa.text(sql), _keys(row)).rowcount > 0

    def skip(self, row: Quarantined) -> bool:
        """Ends a quarantine without catching up; false when there is none, or when it is being caught up."""
        with self._database.transaction() as c:
            sql = f"delete from quarantines where {_ONE} and state <> 'catching_up'"
            return c.execute(sa.text(sql), _keys(row)).rowcount > 0

    def catch_up(self, row: Quarantined, generation: int, epoch: int, upto: int, part: int) -> None:
        """Notes which epoch is about to catch a table up, and to where."""
        with self._fenced(row.flow, generation) as c:
            sql = f"update quarantines set state = 'catching_up', epoch = :e, upto = :u, upto_part = :p where {_ONE}"
            c.execute(sa.text(sql), {**_keys(row), "e": epoch, "u": upto, "p": part})

    def ask_again(self, row: Quarantined, generation: int) -> None:
        """The epoch that was to catch a table up was never planned."""
        with self._fenced(row.flow, generation) as c:
            sql = f"update quarantines set state = 'asked', epoch = null, upto = null, upto_part = null where {_ONE}"
            c.execute(sa.text(sql), _keys(row))

    def end(self, row: Quarantined, generation: int) -> None:
        """A table is caught up, and live again."""
        with self._fenced(row.flow, generation) as c:
            c.execute(sa.text(f"delete from quarantines where {_ONE}"), _keys(row))


def _keys(row: Quarantined) -> dict[str, str]:
    return {"f": row.flow, "d": row.destination, "s": row.schema, "n": row.table}
