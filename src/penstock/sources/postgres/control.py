"""The control connection: ordinary SQL beside the replication stream, in a pinned session, errors already ours."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import RowFactory, dict_row
from psycopg.sql import Composed

from penstock.sources.postgres.conninfo import Conninfo, resolve
from penstock.sources.postgres.handshake import KEEPALIVES
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.wire import SESSION_OPTIONS, translate_psycopg

Row = dict[str, Any]
R = TypeVar("R")

# A role may be read-only by default, or have timeouts that a wait for a lock or for a new slot would meet.
SESSION = f"{SESSION_OPTIONS} -c statement_timeout=60s -c lock_timeout=30s -c idle_session_timeout=0"
# Not among the startup options, where it would make every server look like the one that target_session_attrs wants.
_WRITABLE: LiteralString = "SET default_transaction_read_only = off"

PATIENCE = 75.0
"""Seconds after which a query has no answer coming: the server itself would have ended it by then."""


def pinned(dsn: str, flow: str) -> str:
    """The dsn with the session's settings, which win over those of role and database; the operator's `options` come first.

    What a service file or the environment says is kept as if it stood in the dsn.
    """
    return make_conninfo(dsn, **_extra(resolve(dsn), flow))


def _extra(info: Conninfo, flow: str) -> dict[str, str]:
    extra = {"options": f"{info.value('options')} {SESSION}".strip(), "client_encoding": "UTF8"}
    if not info.value("connect_timeout"):
        extra["connect_timeout"] = "10"
    if info.value("keepalives") != "0":
        extra |= {name: str(value) for name, value in KEEPALIVES.items() if not info.value(name)}
    if not info.value("application_name"):
        extra["application_name"] = application_name(flow)
    return extra


def connect(dsn: str, flow: str, iam: RdsIam | None, rows: RowFactory[R]) -> psycopg.Connection[R]:
    """A new pinned connection in autocommit; errors are the driver's own."""
    if iam is None:
        return _connect(pinned(dsn, flow), rows)
    # Host by host, because libpq would send one host's token to all of them.
    info = resolve(dsn, iam.mint)
    wanted = info.value("target_session_attrs") or "any"
    kinds = ("standby", "any") if wanted == "prefer-standby" else (wanted,)
    last: psycopg.OperationalError | None = None
    for kind, host in [(kind, host) for kind in kinds for host in info.in_order()]:
        one = _extra(info, flow) | {"host": host.name, "hostaddr": host.address, "port": str(host.port)}
        one |= {"sslmode": info.value("sslmode"), "target_session_attrs": kind, "load_balance_hosts": "disable"}
        try:
            return _connect(make_conninfo(dsn, **one, password=iam.mint(info.where(host))), rows)
        except psycopg.OperationalError as error:
            last = error
    assert last is not None
    raise last


def _connect(conninfo: str, rows: RowFactory[R]) -> psycopg.Connection[R]:
    # prepare_threshold: named statements would not survive a pooler between us and the server.
    return psycopg.connect(conninfo, autocommit=True, row_factory=rows, prepare_threshold=None)


def application_name(flow: str) -> str:
    """By what the server's own views show connections of the flow."""
    return f"penstock {flow}"


def has_password(dsn: str) -> bool:
    """Whether the dsn itself holds the password, so that no other can be found without a new dsn."""
    return bool(conninfo_to_dict(dsn).get("password"))


class Control:
    """One connection in autocommit, opened on use and again when it was lost; usable from several threads."""

    def __init__(self, dsn: str, flow: str, patience: float | None = None, iam: RdsIam | None = None) -> None:
        """With `iam` each connection logs in with a token that is minted for it."""
        self.dsn = dsn
        self._patience = PATIENCE if patience is None else patience
        self._flow = flow
        self.iam = iam
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Row] | None = None
        self._closing = False

    @property
    def version(self) -> int:
        """The server's version as a number, such as 180006."""
        with self._lock, self._translated():
            return self._open().info.server_version

    @property
    def database(self) -> str:
        """The name of the database as the server has it."""
        with self._lock, self._translated():
            return self._open().info.dbname

    @property
    def host(self) -> str:
        """Where the server is, as the dsn names it."""
        with self._lock, self._translated():
            info = self._open().info
            return f"{info.host}:{info.port}"

    @property
    def user(self) -> str:
        """The role that is logged in."""
        with self._lock, self._translated():
            return self._open().info.user

    def rows(self, sql: LiteralString | Composed, values: Mapping[str, Any] | None = None) -> list[Row]:
        """The rows of a query; asked once more when a kept connection turns out to be lost."""
        with self._lock, self._translated():
            kept = self._connection is not None and not self._connection.closed
            try:
                return self._ask(sql, values)
            except psycopg.OperationalError:
                if self._closing or not kept or (self._connection is not None and not self._connection.closed):
                    raise
                return self._ask(sql, values)

    def row(self, sql: LiteralString, values: Mapping[str, Any] | None = None) -> Row:
        """The one row of a query."""
        return self.rows(sql, values)[0]

    def execute(self, statement: Composed, before_commit: Callable[[], object] | None = None) -> None:
        """Runs a statement that changes something; never twice.

        `before_commit` is called when the server has done it and nobody sees it yet; if it raises, nothing has happened. It must
        not use this connection.
        """
        with self._lock, self._translated():
            connection = self._open()
            with _answered_within(self._patience, connection), connection.transaction() if before_commit else nullcontext():
                connection.execute(statement)
                if before_commit is not None:
                    before_commit()

    def close(self) -> None:
        """Gives the connection back; a query that another thread waits for in vain is ended."""
        self._closing = True
        while not self._lock.acquire(timeout=1):
            if self._connection is not None:
                _cut(self._connection)
        try:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        finally:
            self._closing = False
            self._lock.release()

    def _ask(self, sql: LiteralString | Composed, values: Mapping[str, Any] | None) -> list[Row]:
        connection = self._open()
        with _answered_within(self._patience, connection):
            return connection.execute(sql, values).fetchall()

    def _open(self) -> psycopg.Connection[Row]:
        if self._connection is None or self._connection.closed:
            connection = connect(self.dsn, self._flow, self.iam, dict_row)
            connection.execute(_WRITABLE)
            self._connection = connection
        return self._connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translate_psycopg(error, self.dsn) from error


@contextmanager
def _answered_within(seconds: float, connection: psycopg.Connection[Row]) -> Iterator[None]:
    """Cuts the connection when the block takes longer: a proxy that stalls acknowledges everything and answers nothing."""
    timer = threading.Timer(seconds, _cut, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(connection: psycopg.Connection[Row]) -> None:
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)
