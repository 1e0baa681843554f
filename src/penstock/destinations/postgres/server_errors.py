"""The one place where what the target server reports becomes an error of ours, by SQLSTATE wherever there is one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import psycopg

from penstock.destinations.sql import quoted
from penstock.errors import (
    DestinationError,
    DestinationFailed,
    DestinationRefused,
    DestinationUnreachable,
    DestinationUnwritable,
    SchemaRefused,
    ValueRefused,
)


class Where(NamedTuple):
    """The server, user and database that a message names, and the table in hand; never a secret."""

    address: str
    user: str
    database: str
    table: str = ""

    @property
    def subject(self) -> str:
        """What a message begins with."""
        return f"{self.address}, {self.table}" if self.table else self.address


def translated(error: psycopg.Error, where: Where) -> DestinationError:
    """The error of ours; `facts` hold the sqlstate when the server gave one."""
    state = error.sqlstate
    if not state:
        return _without_state(error, where)
    make = _BY_STATE.get(state) or _BY_CLASS.get(state[:2]) or _failed
    found = make(error, where)
    found.facts.setdefault("sqlstate", state)
    return found


def _said(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error).strip().partition("\n")[0]
    return f"{text.rstrip('.')} ({error.sqlstate})" if error.sqlstate else text.rstrip(".")


def _failed(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationFailed(f"{where.subject}: {_said(error)}.")


def _value(error: psycopg.Error, where: Where) -> DestinationError:
    """A row was refused. The server's sentence is left out, because it quotes the row."""
    diag = error.diag
    table = ".".join(filter(None, (diag.schema_name, diag.table_name))) or where.table
    facts = {"table": table, "constraint": diag.constraint_name, "column": diag.column_name, "type": diag.datatype_name}
    named = {name: value for name, value in facts.items() if value}
    details = ", ".join(f"{name} {value}" for name, value in named.items() if name != "table")
    kind = _REFUSALS.get(error.sqlstate or "", "a value was refused")
    if error.sqlstate == "P0001":
        remedy = "A trigger of the destination's raised an exception: mend it, or the row at the source."
    elif diag.constraint_name:
        drop = f"ALTER TABLE {table} DROP CONSTRAINT {quoted(diag.constraint_name)};"
        remedy = f"Mend the row at the source, or drop the constraint, {drop} then start the flow again."
    else:
        remedy = None
    return ValueRefused(f"{table or where.address}: {kind}{f' ({details})' if details else ''}.", remedy=remedy, **named)


def _rights(error: psycopg.Error, where: Where) -> DestinationError:
    user = quoted(where.user)
    remedy = (
        f"GRANT CREATE, TEMPORARY ON DATABASE {quoted(where.database)} TO {user}; and for tables that others own:"
        f" GRANT USAGE ON SCHEMA … TO {user}; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON … TO {user};"
        " `penstock doctor --flow FILE` lists what is missing."
    )
    return DestinationRefused(f"{where.subject}: user {where.user!r} lacks a right: {_said(error)}.", remedy=remedy)


def _login(error: psycopg.Error, where: Where) -> DestinationError:
    said = _said(error)
    remedy = f"Correct the password of {where.user} in the destination's dsn, PGPASSWORD or the password file."
    if "pg_hba" in said:
        remedy = (
            f"Add a line such as `host {where.database} {where.user} <address of this client>/32 scram-sha-256` to pg_hba.conf."
        )
    return DestinationRefused(f"{where.address} refused user {where.user!r}: {said}.", remedy=remedy)


def _database(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationRefused(
        f"{where.address} has no database {where.database!r}.",
        remedy=f"CREATE DATABASE {quoted(where.database)}; or correct its name in the destination's dsn.",
    )


def _read_only(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationUnwritable(
        f"{where.address} takes no writes: {_said(error)}.",
        remedy="Point the dsn at the primary: name all hosts and add target_session_attrs=read-write. Delivery goes on by itself"
        " when the server takes writes.",
    )


def _full(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationUnwritable(
        f"{where.address} has no room left: {_said(error)}.", remedy="Free space on the server; delivery goes on by itself."
    )


def _away(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationUnreachable(
        f"{where.address} takes no connections now: {_said(error)}.",
        remedy="Nothing to do while the server starts, stops or fails over; delivery goes on by itself.",
    )


def _crowded(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationUnreachable(
        f"{where.address} has no connection left for user {where.user!r}: {_said(error)}.",
        remedy="Raise max_connections or the role's limit, or close other connections; delivery goes on by itself.",
    )


def _memory(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationFailed(
        f"{where.subject}: the server ran short of memory: {_said(error)}.",
        remedy="Lower `batch.max_bytes` of this destination, or give the server more memory; it is tried again.",
    )


def _conflict(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationFailed(
        f"{where.subject}: another session was in the way: {_said(error)}.",
        remedy="Nothing to do if it stays rare: the epoch is run again. Otherwise keep other writers away from these tables.",
    )


def _locked(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationFailed(
        f"{where.subject}: a lock was not given in time: {_said(error)}.",
        remedy="End the session that holds it: SELECT pid, query FROM pg_stat_activity WHERE pid IN (SELECT"
        " unnest(pg_blocking_pids(pid)) FROM pg_stat_activity); the epoch is run again.",
    )


def _timeout(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationFailed(
        f"{where.subject}: the server ended the statement: {_said(error)}.",
        remedy=f"ALTER ROLE {quoted(where.user)} SET statement_timeout = 0; or lower `batch.max_bytes` of this destination;"
        " the epoch is run again.",
    )


def _gone(error: psycopg.Error, where: Where) -> DestinationError:
    return DestinationFailed(
        f"{where.subject}: {_said(error)}.",
        remedy="Somebody dropped or changed a table under the flow; missing tables and columns are made again at the next try.",
    )


def _schema(error: psycopg.Error, where: Where) -> DestinationError:
    return SchemaRefused(f"{where.subject}: {_said(error)}.", **({"table": where.table} if where.table else {}))


_REFUSALS = {
    "23502": "a column that must not be NULL would be NULL",
    "23503": "a foreign key is violated",
    "23505": "a unique constraint is violated",
    "23514": "a check is violated",
    "23P01": "an exclusion constraint is violated",
    "22001": "a text is longer than its column allows",
    "22003": "a number is out of its column's range",
    "22P02": "a text is none of its column's type",
    "22007": "a date or time is none",
    "54000": "a row or an index entry is too large",
    "44000": "a check option of a view is violated",
    "P0001": "a trigger refused a row",
}
_Make = Callable[[psycopg.Error, Where], DestinationError]
_BY_STATE: dict[str, _Make] = {
    "25006": _read_only,
    "28000": _login,
    "28P01": _login,
    "3D000": _database,
    "40001": _conflict,
    "40P01": _conflict,
    "42501": _rights,
    "42703": _gone,
    "42804": _schema,
    "42846": _schema,
    "428C9": _schema,
    "42P01": _gone,
    "3F000": _gone,
    "42P10": _schema,
    "42704": _schema,
    "0A000": _schema,
    "44000": _value,
    "53100": _full,
    "53200": _memory,
    "53300": _crowded,
    "55P03": _locked,
    "57014": _timeout,
    "57P01": _away,
    "57P02": _away,
    "57P03": _away,
    "57P05": _away,
    "58030": _full,
    "P0001": _value,
}
_BY_CLASS: dict[str, _Make] = {"08": _away, "22": _value, "23": _value, "54": _value}

# libpq keeps the SQLSTATE of a refused connection to itself, and only the English words of its message are left to go by.
_BY_WORDS: tuple[tuple[str, _Make], ...] = (
    (r"password authentication failed|authentication failed|no password supplied|pg_hba\.conf", _login),
    (r"role .* does not exist|not permitted to log in|SSL|certificate|channel binding", _login),
    (r"database .* does not exist|not currently accepting connections", _database),
    (r"permission denied for database", _rights),
    (r"too many (clients|connections)|connection slots", _crowded),
    (r"session is read-only|read-only|hot standby|primary", _read_only),
    (r"starting up|shutting down|recovery|not yet accepting", _away),
)


def _without_state(error: psycopg.Error, where: Where) -> DestinationError:
    # "connection failed: connection to server at "h", port p failed: FATAL:  reason", then perhaps hints in further lines.
    lines = str(error).strip().splitlines() or ["no reason given"]
    said = re.sub(r"^.*failed: |\[Errno -?\d+\] ", "", lines[0]).strip().rstrip(".")
    if not isinstance(error, psycopg.OperationalError):
        return DestinationFailed(f"{where.subject} could not be asked: {type(error).__name__}.")
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return DestinationUnreachable(
            f"{where.address} did not answer in time.",
            remedy="Check host, port and firewall, or raise connect_timeout in the destination's dsn; it is tried again.",
        )
    if error.pgconn is None or not error.pgconn.transaction_status or "FATAL" in said or "session is" in said:
        for words, make in _BY_WORDS:
            if re.search(words, said, re.IGNORECASE):
                return make(psycopg.OperationalError(said.partition("FATAL:")[2].strip() or said), where)
    if error.pgconn is not None and (error.pgconn.needs_password or error.pgconn.used_password) and "FATAL" in said:
        # In another language: a server that was given or wanted a password has most likely refused it.
        return _login(psycopg.OperationalError(said.partition("FATAL:")[2].strip()), where)
    return DestinationUnreachable(
        f"{where.address} cannot be reached: {said}.",
        remedy="Check that the server runs, and host, port and firewall in the destination's dsn; delivery goes on by itself.",
    )
