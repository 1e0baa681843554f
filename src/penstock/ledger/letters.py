"""Dead letters in the ledger: changes that were set aside, from before their epoch's commit until they are delivered or gone.

A letter's state: `pending` while the epoch that sets it aside is not closed, then `open` or, behind another letter of its key,
`waiting`; `replay` when an operator has asked for it; `replaying` with the epoch that delivers it. That epoch may refuse it
again (`refused`) and one with a TRUNCATE makes letters void (`truncated`); both count when the epoch is closed, and are taken
back when it is run again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from penstock.core.epoch import Epoch
from penstock.ledger.database import LedgerDatabase
from penstock.ledger.statement import plain

WAITING = "waiting"
"""Code and state of a letter that only waits for another one."""
_AT_REST = "state in ('open', 'waiting', 'replay')"
_RESTING = "case code when 'waiting' then 'waiting' else 'open' end"
_SHOWN = (
    'id, flow, destination, schema_name as "schema", table_name as "table", row_key as "key", row_keys as "keys", position,'
    " ordinal, op, code, reason, state, attempts, epoch, created_at, length(content) as size"
)


@dataclass(frozen=True)
class Letter:
    """A change that was set aside, without its content."""

    id: int
    flow: str
    destination: str
    schema: str
    table: str
    key: str
    """The row's key as a JSON object; empty for a table without one."""
    keys: tuple[str, ...]
    """Every key that the change touches: two when it moved the row."""
    position: int
    ordinal: int
    op: str
    code: str
    reason: str
    state: str
    attempts: int
    """How often the destination has refused it."""
    epoch: int | None
    """The epoch that decides on it now."""
    created_at: int
    """µs since 1970."""
    size: int
    """Bytes of its content."""

    @property
    def qualified(self) -> str:
        """`schema.table`."""
        return f"{self.schema}.{self.table}"

    @property
    def identity(self) -> tuple[Any, ...]:
        """What makes it this change."""
        return (self.schema, self.table, self.position, self.ordinal, self.op)


class DeadLetters:
    """The letters of every flow; methods that take a connection are part of somebody's fenced transaction."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def all(self, flow: str, destination: str | None = None) -> list[Letter]:
        """The letters of a flow, or of one of its destinations, in log order."""
        where = "flow = :f" + (" and destination = :d" if destination is not None else "")
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(f"select {_SHOWN} from dead_letters where {where} order by destination, position, ordinal, id"),
                {"f": flow, "d": destination} if destination is not None else {"f": flow},
            ).all()
        return [Letter(**{**row._mapping, "keys": tuple(json.loads(row._mapping["keys"]))}) for row in rows]

    def mark(self, flow: str, destination: str) -> tuple[int, int]:
        """Changes whenever anybody has changed a letter of the destination."""
        with self._database.reading() as c:
            row = c.execute(
                sa.text("select count(*), coalesce(max(updated_at), 0) from dead_letters where flow = :f and destination = :d"),
                {"f": flow, "d": destination},
            ).one()
        return int(row[0]), int(row[1])

    def content(self, letter: int) -> bytes | None:
        """The packed change; None when there is no such letter any more."""
        with self._database.reading() as c:
            found: bytes | None = c.scalar(sa.text("select content from dead_letters where id = :i"), {"i": letter})
        return found

    def replayed_by(self, epoch: Epoch) -> list[bytes]:
        """The packed changes that the epoch delivers before its own, in log order."""
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(
                    "select content from dead_letters where flow = :f and destination = :d and epoch = :n"
                    " and state in ('replaying', 'refused') order by position, ordinal, id"
                ),
                {"f": epoch.flow, "d": epoch.destination, "n": epoch.number},
            ).all()
        return [bytes(row[0]) for row in rows]

    def ask(self, flow: str, letters: Iterable[int]) -> set[int]:
        """Marks letters for replay; returns those that are marked now."""
        return self._each(
            f"update dead_letters set state = 'replay', updated_at = :t where flow = :f and id = :i and {_AT_REST}", flow, letters
        )

    def discard(self, flow: str, letters: Iterable[int]) -> set[int]:
        """Removes letters for good; returns those that are gone, all but those that an epoch is deciding on."""
        return self._each(f"delete from dead_letters where flow = :f and id = :i and {_AT_REST}", flow, letters)

    def _each(self, sql: str, flow: str, letters: Iterable[int]) -> set[int]:
        with self._database.transaction(flow) as c:
            return {i for i in letters if c.execute(sa.text(sql), {"f": flow, "i": i, "t": _now()}).rowcount}

    def set_aside(
        self,
        c: sa.Connection,
        epoch: Epoch,
        found: Sequence[Mapping[str, Any]],
        again: Mapping[int, tuple[str, str]],
        truncated: Mapping[tuple[str, str], tuple[int, int]],
    ) -> None:
        """What the epoch sets aside, instead of what an earlier try at it did: new letters, letters that it was to replay
        and that were refused again with code and reason, and tables emptied at a position and ordinal."""
        who = {"f": epoch.flow, "d": epoch.destination, "n": epoch.number, "t": _now()}
        for sql in (
            "delete from dead_letters where flow = :f and destination = :d and epoch = :n and state = 'pending'",
            "update dead_letters set state = 'replaying', updated_at = :t"
            " where flow = :f and destination = :d and epoch = :n and state = 'refused'",
            f"update dead_letters set state = {_RESTING}, epoch = null, updated_at = :t"
            " where flow = :f and destination = :d and epoch = :n and state = 'truncated'",
        ):
            c.execute(sa.text(sql), who)
        if found:
            c.execute(_INSERT, [{**who, **letter, **_texts(letter)} for letter in found])
        for letter, (code, reason) in again.items():
            c.execute(
                sa.text("update dead_letters set state = 'refused', code = :c, reason = :r, updated_at = :t where id = :i"),
                {"c": code, "r": plain(reason), "i": letter, "t": _now()},
            )
        for (schema, table), (position, ordinal) in truncated.items():
            c.execute(
                sa.text(
                    "update dead_letters set state = 'truncated', epoch = :n, updated_at = :t"
                    " where flow = :f and destination = :d and schema_name = :schema and table_name = :table"
                    f" and (position < :p or (position = :p and ordinal < :o)) and {_AT_REST}"
                ),
                {**who, "schema": schema, "table": table, "p": position, "o": ordinal},
            )

    def begin_replay(self, c: sa.Connection, epoch: Epoch, letters: Iterable[int]) -> None:
        """Makes the epoch that is being planned deliver letters."""
        c.execute(
            sa.text(
                "update dead_letters set state = 'replaying', epoch = :n, updated_at = :t"
                f" where flow = :f and id = :i and {_AT_REST}"
            ),
            [{"n": epoch.number, "f": epoch.flow, "i": i, "t": _now()} for i in letters],
        )

    def close(self, c: sa.Connection, epoch: Epoch) -> None:
        """What the epoch decided holds from now on: letters that it delivered or made void are gone, others stand."""
        who = {"f": epoch.flow, "d": epoch.destination, "n": epoch.number, "t": _now()}
        mine = "where flow = :f and destination = :d and epoch = :n"
        c.execute(sa.text(f"delete from dead_letters {mine} and state in ('replaying', 'truncated')"), who)
        c.execute(
            sa.text(
                f"update dead_letters set state = {_RESTING}, attempts = attempts + case code when 'waiting' then 0 else 1 end,"
                f" epoch = null, updated_at = :t {mine} and state in ('pending', 'refused')"
            ),
            who,
        )

    def give_back(self, c: sa.Connection, epoch: Epoch, code: str, reason: str) -> int:
        """Takes letters out of an epoch that cannot be delivered with them; returns how many."""
        return c.execute(
            sa.text(
                "update dead_letters set state = 'open', epoch = null, attempts = attempts + 1, code = :c, reason = :r,"
                " updated_at = :t where flow = :f and destination = :d and epoch = :n and state in ('replaying', 'refused')"
            ),
            {"c": code, "r": plain(reason), "t": _now(), "f": epoch.flow, "d": epoch.destination, "n": epoch.number},
        ).rowcount

    def let_go(self, c: sa.Connection, flow: str, destination: str) -> None:
        """Undoes what planned epochs were about to decide, because they are given up."""
        who = {"f": flow, "d": destination, "t": _now()}
        mine = "where flow = :f and destination = :d and epoch is not null"
        c.execute(sa.text(f"delete from dead_letters {mine} and state = 'pending'"), who)
        c.execute(sa.text(f"update dead_letters set state = {_RESTING}, epoch = null, updated_at = :t {mine}"), who)

    def expire(self, c: sa.Connection, flow: str, destination: str, before: int) -> int:
        """Removes letters that were set aside before a time (µs since 1970); returns how many."""
        return c.execute(
            sa.text(f"delete from dead_letters where flow = :f and destination = :d and created_at < :b and {_AT_REST}"),
            {"f": flow, "d": destination, "b": before},
        ).rowcount


_INSERT = sa.text(
    "insert into dead_letters (flow, destination, schema_name, table_name, row_key, row_keys, position, ordinal, op, code,"
    " reason, content, state, attempts, epoch, created_at, updated_at) values (:f, :d, :schema, :table, :key, :keys,"
    # A change that has a letter already keeps it: a destination that begins anew meets its old refusals again.
    " :position, :ordinal, :op, :code, :reason, :content, 'pending', 0, :n, :t, :t) on conflict do nothing"
)


def _texts(letter: Mapping[str, Any]) -> dict[str, str]:
    return {"keys": json.dumps(letter["keys"], ensure_ascii=False), "reason": plain(letter["reason"])}


def _now() -> int:
    return time.time_ns() // 1000
