"""The ledger in a SQLite file: whoever writes has the whole file for the moment."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from penstock.errors import LedgerError, LedgerUnreachable, LedgerUnusable
from penstock.ledger.backend import GENERATION, Writes

PATIENCE = 10
"""Seconds that a transaction waits for those of other processes."""


class SQLiteBackend:
    """WAL mode: readers wait for nobody, and a writer for other writers only."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        """LedgerUnusable when the file's directory cannot be made."""
        self._path, self._durable = path, durable
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise LedgerUnusable(f"the ledger's directory {path.parent} cannot be made: {error.strerror}") from error

    def engine(self) -> sa.Engine:
        """One connection for all threads."""
        _make_private(self._path)
        engine = sa.create_engine(
            f"sqlite:///{self._path}", poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": PATIENCE}
        )
        sa.event.listen(engine, "connect", partial(_pin, self._durable))
        return engine

    def begin(self, connection: sa.Connection) -> None:
        """Takes the file's write lock at once: a transaction that reads first could not get it later."""
        cursor = connection.connection.cursor()
        cursor.execute("begin immediate")
        cursor.close()

    def lock_flow(self, connection: sa.Connection, flow: str) -> None:
        """Nothing: a transaction has the whole file."""

    def lock_schema(self, connection: sa.Connection) -> None:
        """Nothing, for the same reason."""

    def version(self, connection: sa.Connection) -> str | None:
        """From Alembic's table, if it is there."""
        if not connection.scalar(sa.text("select 1 from sqlite_master where name = 'alembic_version'")):
            return None
        found: str | None = connection.scalar(sa.text("select version_num from alembic_version"))
        return found

    def write(
        self, connection: sa.PoolProxiedConnection, dialect: sa.Dialect, flow: str, generation: int, writes: Writes
    ) -> bool:
        """By the driver's own cursor, without SQLAlchemy's results."""
        cursor = connection.cursor()
        cursor.execute("begin immediate")
        try:
            found = cursor.execute(*GENERATION.for_driver(dialect, {"n": flow})).fetchone()
            if found is None or found[0] != generation:
                cursor.execute("rollback")
                return False
            for statement, values in writes:
                cursor.execute(*statement.for_driver(dialect, dict(values)))
            cursor.execute("commit")
        except BaseException:
            connection.rollback()
            raise
        finally:
            cursor.close()
        return True

    def failure(self, error: Exception) -> LedgerError:
        """Busy passes; everything else wants an operator."""
        own = error if isinstance(error, sqlite3.Error) else getattr(error, "orig", None)
        kind: type[LedgerError] = LedgerUnusable
        if getattr(own, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            kind = LedgerUnreachable
        return kind(f"the ledger {self._path} cannot be used: {own or type(error).__name__}")


def _make_private(path: Path) -> None:
    # Dead letters in it are rows of somebody's data; what SQLite lays beside it gets the file's own rights. The file is made, and
    # closed, under another name: whoever closes any descriptor of a database gives up every lock that his process has on it
    # (POSIX), and a log that is begun anew under a reader whose lock is gone corrupts the file.
    if path.exists():
        return
    with suppress(OSError):
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        os.close(descriptor)
        try:
            os.link(made, path)
        finally:
            os.unlink(made)


def _pin(durable: bool, connection: Any, _record: Any) -> None:
    # isolation_level None: sqlite3's own transaction handling would begin late and commit around DDL.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=wal", f"synchronous={'full' if durable else 'normal'}", "foreign_keys=on"):
        cursor.execute(f"pragma {pragma}")
    if durable:
        # A checkpoint is two more syncs in some epoch's way. The connection that renews the lease, every three seconds and
        # in a thread of its own, has the usual limit of 1,000 pages and comes first.
        cursor.execute("pragma wal_autocheckpoint=16384")
    cursor.close()
