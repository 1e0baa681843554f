"""The ledger's database: one connection, whole transactions, the newest schema."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from penstock.errors import LedgerUnusable
from penstock.ledger.schema import HEAD


class Statement:
    """SQL with named parameters, compiled once: two of them stand in every epoch's way, where a millisecond counts."""

    def __init__(self, sql: str) -> None:
        self._text = sa.text(sql)
        self._ready: tuple[str, tuple[str, ...] | None] | None = None

    def run(self, connection: sa.Connection, **values: Any) -> sa.CursorResult[Any]:
        """Runs it in the transaction."""
        return connection.exec_driver_sql(*self._driver(connection, values))

    def quick(self, connection: sa.Connection, **values: Any) -> Any:
        """Runs it in the transaction, by the driver's own cursor. Returns a query's first value, or None.

        An epoch's five statements stand in its way: closing one took 0.60 ms of CPU through SQLAlchemy's results, 0.45 so.
        """
        cursor = connection.connection.cursor()
        cursor.execute(*self._driver(connection, values))
        row = cursor.fetchone() if cursor.description else None
        cursor.close()
        return None if row is None else row[0]

    def _driver(self, connection: sa.Connection, values: dict[str, Any]) -> tuple[str, Any]:
        """The statement and its values as the driver takes them."""
        if self._ready is None:
            compiled = self._text.compile(dialect=connection.dialect)
            self._ready = (str(compiled), tuple(compiled.positiontup) if compiled.positiontup else None)
        sql, names = self._ready
        return sql, values if names is None else tuple(values[n] for n in names)


class LedgerDatabase:
    """Serialises transactions of this process over one connection; every one of them is durable when it returns."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        """Without `durable`, what is written last may be lost with the machine's power, and nothing that was written before."""
        self.path = path
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LedgerUnusable(f"the ledger's directory {path.parent} cannot be made: {error.strerror}") from error
        self._engine = sa.create_engine(
            f"sqlite:///{path}", poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 10}
        )
        sa.event.listen(self._engine, "connect", partial(_pin, "full" if durable else "normal"))
        sa.event.listen(self._engine, "begin", _begin)
        self._migrate()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A transaction that sees and locks everything it needs; durable after the block, gone after an error."""
        with self._lock:
            try:
                with self._engine.begin() as connection:
                    yield connection
            except (SQLAlchemyError, sqlite3.Error) as error:
                raise LedgerUnusable(f"the ledger {self.path} cannot be used: {_reason(error)}") from error

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A moment of the ledger that nobody waits for: no lock is taken, and nothing may be written."""
        with self._lock:
            try:
                with self._engine.connect().execution_options(penstock_reads=True) as connection:
                    yield connection
            except SQLAlchemyError as error:
                raise LedgerUnusable(f"the ledger {self.path} cannot be used: {_reason(error)}") from error

    def close(self) -> None:
        """Gives back the connection."""
        with self._lock:
            self._engine.dispose()

    def _migrate(self) -> None:
        with self.transaction() as connection:
            known = sa.inspect(connection).has_table("alembic_version")
            version = connection.scalar(sa.text("select version_num from alembic_version")) if known else None
            if version == HEAD:
                return
            if version is not None and version > HEAD:
                raise LedgerUnusable(
                    f"the ledger {self.path} was written by a newer version of penstock",
                    remedy="Upgrade penstock, or give this worker a --state directory of its own.",
                )
            # Loaded only when there is something to do: alembic takes a third of a second to import.
            from alembic import command
            from alembic.config import Config

            config = Config()
            config.set_main_option("script_location", "penstock.ledger:migrations")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _pin(synchronous: str, connection: Any, _record: Any) -> None:
    # isolation_level None: sqlite3's own transaction handling would begin late and commit around DDL.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=wal", f"synchronous={synchronous}", "foreign_keys=on"):
        cursor.execute(f"pragma {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get("penstock_reads")
    connection.exec_driver_sql("begin" if reads else "begin immediate")


def _reason(error: Exception) -> str:
    own = error if isinstance(error, sqlite3.Error) else getattr(error, "orig", None)
    return str(own or type(error).__name__)
