"""The ledger's database: one connection, whole transactions, the newest schema."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from penstock.errors import LedgerFenced
from penstock.ledger import migrating
from penstock.ledger.address import LedgerAddress
from penstock.ledger.backend import GENERATION, Backend
from penstock.ledger.statement import Statement


class LedgerDatabase:
    """Serialises transactions of this process over one connection; every one of them is durable when it returns.

    LedgerUnreachable means that a transaction counts wholly or not at all, and that nobody here knows which: who tries again
    reads first.
    """

    def __init__(self, where: LedgerAddress | Path, *, durable: bool = True) -> None:
        """Without `durable`, what is written last may be lost with the machine's power, and nothing that was written before."""
        self.address = LedgerAddress.of(where)
        self._lock = threading.RLock()
        self._backend = _backend(self.address, durable)
        self._errors: tuple[type[Exception], ...] = (SQLAlchemyError, *self._backend.errors)
        self._engine = self._backend.engine()
        sa.event.listen(self._engine, "begin", self._begin)
        try:
            with self.reading() as connection:
                current = migrating.is_current(connection, self._backend, str(self.address))
            if not current:
                with self.transaction() as connection:
                    migrating.migrate(connection, self._backend, str(self.address))
        except BaseException:
            self._engine.dispose()
            raise

    @contextmanager
    def transaction(self, flow: str | None = None) -> Iterator[sa.Connection]:
        """A transaction, durable after the block, gone after an error; with `flow` it is the only one that concerns the flow."""
        with self._guarded(), self._engine.begin() as connection:
            if flow is not None:
                self._backend.lock_flow(connection, flow)
            yield connection

    @contextmanager
    def fenced(self, flow: str, generation: int) -> Iterator[sa.Connection]:
        """A transaction during which nobody can take the flow over; LedgerFenced when somebody has."""
        with self.transaction() as connection:
            current = GENERATION.quick(connection, n=flow)
            if current != generation:
                raise _fence(flow, generation, current)
            yield connection

    def write(self, flow: str, generation: int, *writes: tuple[Statement, Mapping[str, Any]]) -> None:
        """Statements that need no answers, as one fenced transaction: the quick way, of every epoch."""
        with self._guarded():
            connection = self._engine.raw_connection()
            try:
                done = self._backend.write(connection, self._engine.dialect, flow, generation, writes)
            finally:
                connection.close()
        if not done:
            with self.reading() as c:
                raise _fence(flow, generation, c.scalar(sa.text("select generation from flows where name = :n"), {"n": flow}))

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Statements that lock nothing and write nothing, each of them a moment of its own."""
        with self._guarded(), self._engine.connect().execution_options(penstock_single=True) as connection:
            yield connection

    def ask(self, statement: Statement, **values: Any) -> list[dict[str, Any]]:
        """A query's rows, by the driver's own cursor: what is asked twice a second for every flow takes a third so."""
        with self._guarded():
            connection = self._engine.raw_connection()
            try:
                cursor = connection.cursor()
                cursor.execute(*statement.for_driver(self._engine.dialect, values))
                names = [column[0] for column in cursor.description]
                rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
                cursor.close()
                return rows
            finally:
                connection.close()

    def change(self, statement: Statement, **values: Any) -> int:
        """One statement that is a transaction of its own, and one question to a server; returns how many rows it changed."""
        with self.reading() as connection:
            return statement.run(connection, **values).rowcount

    def close(self) -> None:
        """Gives back the connection."""
        with self._lock:
            self._engine.dispose()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except self._errors as error:
                raise self._backend.failure(error) from error

    def _begin(self, connection: sa.Connection) -> None:
        if not connection.get_execution_options().get("penstock_single"):
            self._backend.begin(connection)


def _backend(address: LedgerAddress, durable: bool) -> Backend:
    if address.path is None:
        # Loaded only where it is used: a file needs no client of a server.
        from penstock.ledger.postgres import PostgresBackend

        return PostgresBackend(address)
    from penstock.ledger.sqlite import SQLiteBackend

    return SQLiteBackend(address.path, durable=durable)


def _fence(flow: str, generation: int, current: int | None) -> LedgerFenced:
    return LedgerFenced(f"flow {flow} was taken over by generation {current}; this worker is {generation}", flow=flow)
