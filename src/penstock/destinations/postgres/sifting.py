"""Which rows of an epoch the server refuses: tried in halves under savepoints, in a transaction that is undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pyarrow as pa

from penstock.destinations.aside import Refusal
from penstock.destinations.folding.moves import Moves
from penstock.destinations.folding.staged import StagedChunk
from penstock.destinations.postgres.apply import PostgresRoom, Work, apply_work, change, put, put_moved, remove
from penstock.destinations.postgres.rows import Transaction
from penstock.destinations.postgres.server_errors import Where, translated
from penstock.errors import ValueRefused

Source = tuple[str, str]
"""Schema and table at the source."""
_MARK = "SAVEPOINT penstock_sift"
_UNDO = "ROLLBACK TO SAVEPOINT penstock_sift"
_KEEP = "RELEASE SAVEPOINT penstock_sift"


class Sieve:
    """Applies an epoch inside an open transaction, leaving out every row that is refused; the caller undoes all of it.

    A refused row among n costs about log n statements; what is not refused is tried once in a piece of its own size.
    """

    def __init__(self, transaction: Transaction, where: Where) -> None:
        self._transaction, self._where = transaction, where
        self._source: Source = ("", "")
        self.refusals: list[Refusal] = []

    def sift(self, work: Mapping[Source, Work]) -> None:
        """Fills `refusals`; constraints that wait for the commit are asked at the end, and row by row if they object."""
        self._transaction.run(_MARK)
        self._all(work)
        if self.refusals or self._try(lambda: self._transaction.run("SET CONSTRAINTS ALL IMMEDIATE")) is None:
            return
        self._transaction.run(_UNDO)
        self._transaction.run("SET CONSTRAINTS ALL IMMEDIATE")
        self._all(work)

    def _all(self, work: Mapping[Source, Work]) -> None:
        for source, one in work.items():
            self._source = source
            apply_work(self._transaction, one, self._chunk)

    def _chunk(self, room: PostgresRoom, chunk: StagedChunk, moves: Moves) -> None:
        """A chunk's parts in the order in which they are applied."""
        deletes, moved, patches = (chunk.part(name) for name in ("deletes", "moved", "patches"))
        if patches is not None:
            self._part(patches, chunk.names("patches"), lambda rows: change(room, chunk, rows))
        keys = moves.take(moved, chunk) if moved is not None else None
        if deletes is not None:
            self._part(deletes, chunk.names("deletes"), lambda rows: remove(room, chunk, rows))
        for name in ("upserts", "inserts"):
            if (whole := chunk.part(name)) is not None:
                self._part(whole, chunk.names(name), lambda rows: put(room, chunk, rows))
        if keys is not None:
            self._part(keys, chunk.names("moved"), lambda rows: put_moved(room, chunk, rows))
            moves.given()

    def _part(self, rows: pa.Table, names: Any, apply: Callable[[pa.Table], None]) -> None:
        waiting = [(0, rows.num_rows)]
        while waiting:
            begin, end = waiting.pop()
            refused = self._try(lambda part=rows.slice(begin, end - begin): apply(part))  # type: ignore[misc]
            if refused is None:
                continue
            if end - begin > 1:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
            elif names is not None:
                position, ordinal = (int(number) for number in names[begin])
                about = {"schema": self._source[0], "table": self._source[1], "position": position, "ordinal": ordinal}
                # A row that is refused by the table is refused by its staging table too.
                if not any(about.items() <= known.items() for known in self.refusals):
                    self.refusals.append({**about, "code": refused.code, "reason": refused.message})

    def _try(self, act: Callable[[], object]) -> ValueRefused | None:
        """Does something, or undoes what it began and says why the server refused a row."""
        self._transaction.run(_MARK)
        try:
            act()
        except psycopg.Error as error:
            found = translated(error, self._where)
            if not isinstance(found, ValueRefused):
                raise
            self._transaction.run(_UNDO)
            self._transaction.run(_KEEP)
            return found
        self._transaction.run(_KEEP)
        return None
