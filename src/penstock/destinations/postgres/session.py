"""The session at the target: one connection, opened when needed and pinned, its errors turned into ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import RawCursor
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format, TransactionStatus

from penstock.destinations.base import Place
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.server_errors import Where, translated

Connection = psycopg.Connection[tuple[Any, ...]]

# Values travel as text where their binary form is not known here; these decide how the server reads them. A worker that was
# stopped in mid-transaction must not hold its locks for ever, and a role may be read-only by default.
_PINNED: Final = (
    "-c timezone=UTC -c datestyle=ISO,YMD -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex"
    " -c lc_monetary=C -c xmloption=content -c search_path= -c default_transaction_isolation=read\\ committed"
    " -c idle_in_transaction_session_timeout=30s -c client_min_messages=error"
)
# A peer that vanished is noticed in half a minute, not after the kernel's two hours.
_EXTRA: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


class Packed(bytes):
    """A parameter that is already in the server's binary form; the statement says of which type it is."""


class _PackedDumper(Dumper):
    format = Format.BINARY
    oid = 0

    def dump(self, obj: Packed) -> Buffer | None:
        return bytes(obj)


class Session:
    """One connection in autocommit, used by one thread."""

    def __init__(self, place: Place, options: PostgresOptions) -> None:
        self._place, self._options = place, options
        self._open: Connection | None = None
        self.opened = 0
        """How many times a connection was made: what was read through one holds only until the next."""
        self.table = ""
        """The table in hand, for messages."""

    @property
    def name(self) -> str:
        """By what the server's own views show the session, unless the dsn gives another name."""
        return f"penstock {self._place.flow}.{self._place.destination}"[:63]

    @property
    def where(self) -> Where:
        """How messages name the server."""
        if self._open is not None:
            info = self._open.info
            return Where(_address(info.host, str(info.port)), info.user, info.dbname, self.table)
        given = conninfo_to_dict(self._options.dsn)
        host = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "local socket")
        user = str(given.get("user") or os.environ.get("PGUSER") or os.environ.get("USER") or "")
        database = str(given.get("dbname") or os.environ.get("PGDATABASE") or user)
        return Where(_address(host, str(given.get("port") or os.environ.get("PGPORT") or 5432)), user, database, self.table)

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """The connection, outside a transaction; errors come out as ours, and what was begun is undone."""
        try:
            yield self._connected()
        except psycopg.Error as error:
            found = translated(error, self.where)
            self._recover()
            raise found from error
        except BaseException:
            self._recover()
            raise
        finally:
            self.table = ""

    def close(self) -> None:
        """Gives the connection back."""
        if self._open is not None:
            with suppress(psycopg.Error):
                self._open.close()
            self._open = None

    def _connected(self) -> Connection:
        if self._open is None or self._open.closed:
            self._open = _connect(self._options, self.name)
            self.opened += 1
        return self._open

    def _recover(self) -> None:
        if self._open is None:
            return
        if self._open.closed or self._open.pgconn.transaction_status != TransactionStatus.INERROR:
            # In the middle of a COPY or a pipeline, or of something that nobody waited for: a new connection knows where it is.
            if self._open.closed or self._open.pgconn.transaction_status != TransactionStatus.IDLE:
                self.close()
            return
        try:
            self._open.execute("ROLLBACK")
        except psycopg.Error:
            self.close()


def execute(connection: Connection, sql: str, values: Sequence[Any] | None = None) -> psycopg.Cursor[tuple[Any, ...]]:
    """Runs one statement with `$1` and so on for its values."""
    return connection.execute(sql.encode(), values)


def _connect(options: PostgresOptions, name: str) -> Connection:
    given = conninfo_to_dict(options.dsn)
    settings = (
        f"{given.get('options') or os.environ.get('PGOPTIONS', '')} {_PINNED} -c synchronous_commit={options.synchronous_commit}"
    )
    extra = {key: value for key, value in _EXTRA.items() if not given.get(key)}
    extra |= {"options": settings.strip(), "client_encoding": "UTF8"}
    if not given.get("application_name"):
        extra["application_name"] = name
    # prepare_threshold: named statements would not survive a pooler between us and the server.
    connection: Connection = psycopg.connect(
        make_conninfo(options.dsn, **extra), autocommit=True, prepare_threshold=None, cursor_factory=RawCursor
    )
    connection.adapters.register_dumper(Packed, _PackedDumper)
    connection.execute("SET default_transaction_read_only = off")
    return connection


def _address(host: str, port: str) -> str:
    first = host.split(",")[0]
    return f"{first}/.s.PGSQL.{port}" if first.startswith("/") else f"{first}:{port.split(',')[0]}"
