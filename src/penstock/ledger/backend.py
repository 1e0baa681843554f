"""What the ledger asks of a database, SQLite or PostgreSQL: the same promises, kept in each one's own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from penstock.errors import LedgerError
from penstock.ledger.statement import Statement

Writes = Sequence[tuple[Statement, Mapping[str, Any]]]
"""Statements with their values, in order."""

GENERATION = Statement("select generation from flows where name = :n {lock}")
"""The flow's generation, which nobody can raise before the transaction's end."""


class Backend(Protocol):
    """Connections are in autocommit: who needs a transaction begins one, so that a single read costs a single question."""

    errors: tuple[type[Exception], ...]
    """What the driver raises."""

    def engine(self) -> sa.Engine:
        """An engine of one connection, made when it is needed, and made again when it was lost."""

    def begin(self, connection: sa.Connection) -> None:
        """Begins a transaction that may write."""

    def lock_flow(self, connection: sa.Connection, flow: str) -> None:
        """Lets no other transaction that concerns the flow go on before this one's end; it may be a flow that is not there."""

    def lock_schema(self, connection: sa.Connection) -> None:
        """Lets no other process migrate before this transaction's end; makes what the tables are to stand in."""

    def version(self, connection: sa.Connection) -> str | None:
        """The newest migration that the ledger has had; None for an empty one."""

    def write(
        self, connection: sa.PoolProxiedConnection, dialect: sa.Dialect, flow: str, generation: int, writes: Writes
    ) -> bool:
        """All of it in one durable transaction; false, and nothing, when the flow's generation is another."""

    def failure(self, error: Exception) -> LedgerError:
        """The error of ours for one of the driver's or of SQLAlchemy's."""
