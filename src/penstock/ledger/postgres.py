"""The ledger on a PostgreSQL server, for workers of several machines: in a schema of its own, locked flow by flow."""

from __future__ import annotations

import re
import select
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.exc import DisconnectionError, InvalidRequestError
from sqlalchemy.pool import QueuePool

from penstock.core.secret import mask
from penstock.errors import LedgerError, LedgerUnreachable, LedgerUnusable
from penstock.ledger.address import LedgerAddress
from penstock.ledger.backend import GENERATION, Writes
from penstock.ledger.statement import LOCKS, Statement

SCHEMA = "penstock_ledger"
"""A schema of its own: the database may be another program's too, and Alembic's table has the same name everywhere."""
_SETTINGS = f"""\
set search_path to {SCHEMA};
set lock_timeout to '12s';
set idle_in_transaction_session_timeout to '8s';
set timezone to 'UTC';
select set_config('synchronous_commit', 'on', false) where current_setting('synchronous_commit') = 'off'"""
# Who stands still in the middle of a transaction is let go of before his lease could be taken over, and holds nobody up.
_CONNECTION = {
    "application_name": "penstock ledger",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_FENCE = Statement(
    # Divides by zero, so that nothing of what was sent after it counts, when the generation is another. It waits for the row
    # first, and then looks at it anew.
    "select 1 / count(*) from (select from flows where name = :f and generation = :g for no key update) mine"
)
_LOCK = Statement("select pg_advisory_xact_lock(:c, hashtext(:f))")

_PASSING = re.compile(r"08|40|53|57P|55P03|57014|25006|25P03")
"""Classes and codes of what goes away by itself: connections, deadlocks, resources, shutdown, waits, a standby."""
_REFUSED = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|not permitted to log in|SSL|certificate"
    r"|channel binding|database .* does not exist|permission denied",
    re.IGNORECASE,
)


class PostgresBackend:
    """One connection; a transaction that it does not survive counts wholly or not at all."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, address: LedgerAddress) -> None:
        self._address = address

    def engine(self) -> sa.Engine:
        """A pool of one connection, which is looked at before it is used."""
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=0,
            # Transactions end in order here; a rollback over a connection that was lost would only complain.
            pool_reset_on_return=None,
            use_native_hstore=False,
        )
        sa.event.listen(engine, "checkout", _refuse_lost)
        return engine

    def begin(self, connection: sa.Connection) -> None:
        """Read committed: what is read after a lock was waited for is what its former holder has left."""
        connection.exec_driver_sql("begin")

    def lock_flow(self, connection: sa.Connection, flow: str) -> None:
        """By name, since there may be no row yet, and by row, since that is what fenced writes lock."""
        _LOCK.run(connection, c=LOCKS, f=flow)
        GENERATION.run(connection, n=flow)

    def lock_schema(self, connection: sa.Connection) -> None:
        """An advisory lock, and the schema: DDL is part of the transaction here."""
        _LOCK.run(connection, c=LOCKS, f="the schema")
        if connection.scalar(sa.text("select to_regnamespace(:s)"), {"s": SCHEMA}) is None:
            connection.exec_driver_sql(f"create schema {SCHEMA}")

    def version(self, connection: sa.Connection) -> str | None:
        """From Alembic's table, if it is there."""
        if connection.scalar(sa.text("select to_regclass(:t)"), {"t": f"{SCHEMA}.alembic_version"}) is None:
            return None
        found: str | None = connection.scalar(sa.text("select version_num from alembic_version"))
        return found

    def write(
        self, connection: sa.PoolProxiedConnection, dialect: sa.Dialect, flow: str, generation: int, writes: Writes
    ) -> bool:
        """One round trip: the fence is the server's to judge, so that nobody waits for its answer before the rest is sent."""
        raw: Any = connection.dbapi_connection
        try:
            with raw.pipeline():
                raw.execute("begin")
                for statement, values in ((_FENCE, {"f": flow, "g": generation}), *writes):
                    raw.execute(*statement.for_driver(dialect, dict(values)), prepare=True)
                raw.execute("commit")
        except psycopg.errors.DivisionByZero:
            raw.rollback()
            return False
        except BaseException:
            if not raw.closed:
                raw.rollback()
            raise
        return True

    def failure(self, error: Exception) -> LedgerError:
        """What passes by itself is timed; what the server refuses wants an operator."""
        own = _first(error)
        said = mask(" ".join(str(own).split())) or type(own).__name__
        state = getattr(own, "sqlstate", None)
        # The pool's own word for a connection that was lost, and lost again when it was made anew.
        lost = isinstance(own, psycopg.OperationalError | psycopg.InterfaceError | InvalidRequestError)
        if _PASSING.match(state) if state else lost and not _REFUSED.search(said):
            return LedgerUnreachable(f"the ledger {self._address} cannot be reached: {said}")
        return LedgerUnusable(f"the ledger {self._address} cannot be used: {said}", remedy=_remedy(state, said))

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        given: dict[str, Any] = {**_CONNECTION, **conninfo_to_dict(self._address.conninfo)}
        connection = psycopg.connect(**given, autocommit=True)
        try:
            connection.execute(_SETTINGS)
        except BaseException:
            connection.close()
            raise
        return connection


def _refuse_lost(connection: Any, _record: object, _proxy: object) -> None:
    """Has a connection made anew over which the server has said something unasked: that it ends."""
    if connection.closed or _is_readable(connection.pgconn.socket):
        raise DisconnectionError


def _is_readable(socket: int) -> bool:
    look = select.poll()
    look.register(socket, select.POLLIN)
    return bool(look.poll(0))


def _first(error: BaseException) -> BaseException:
    """What began it: a rollback over a lost connection fails too, and says less."""
    found: BaseException = error
    walk: BaseException | None = error
    while walk is not None:
        own = getattr(walk, "orig", walk)
        found = own if isinstance(own, psycopg.Error) else found
        walk = walk.__context__
    return found


def _remedy(state: str | None, said: str) -> str:
    if state == "42501" or "permission denied" in said:
        return (
            f"Make the schema and give it to the ledger's user: CREATE SCHEMA {SCHEMA} AUTHORIZATION …;"
            " or let the user make it: GRANT CREATE ON DATABASE …"
        )
    return "Check user, password and database in PENSTOCK_DATABASE_URL, and the server's log."
