"""The one place where what PostgreSQL reports becomes an error of ours: by SQLSTATE, not by words, wherever that is possible."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

import psycopg

from penstock.errors import (
    ProtocolBroken,
    PublicationMissing,
    SlotInUse,
    SlotLost,
    SlotMissing,
    SourceDatabaseMissing,
    SourceError,
    SourceFailed,
    SourceRefused,
    SourceRights,
    SourceSettings,
    SourceStopping,
    SourceUnreachable,
)
from penstock.sources.postgres.conninfo import Where, resolve

NOWHERE = Where("the server", 0, "", "")


class ServerError(NamedTuple):
    """The fields of an ErrorResponse that matter; `routine` is the server's C function, which no locale translates."""

    severity: str
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""
    routine: str = ""


def parse_error(payload: bytes) -> ServerError:
    """The error that an ErrorResponse or NoticeResponse carries; never fails, whatever the bytes."""
    fields = {field[:1]: field[1:].decode("utf-8", "replace") for field in payload.split(b"\0") if field}
    return ServerError(
        fields.get(b"V") or fields.get(b"S", "ERROR"),
        fields.get(b"C", "XX000"),
        fields.get(b"M", "no message"),
        fields.get(b"D", ""),
        fields.get(b"H", ""),
        fields.get(b"R", ""),
    )


def raise_server_error(payload: bytes, where: Where = NOWHERE) -> NoReturn:
    """Raise what an ErrorResponse means."""
    raise translate_sqlstate(parse_error(payload), where)


def translate_sqlstate(error: ServerError, where: Where) -> SourceError:
    """The error of ours for an error of the server's; `facts` always hold the sqlstate."""
    translate = _BY_SQLSTATE.get(error.sqlstate, _failed)
    found = translate(error, where)
    found.facts.setdefault("sqlstate", error.sqlstate)
    return found


def _place(where: Where) -> str:
    return where.address if where.port else where.host


def _said(error: ServerError) -> str:
    # Data exceptions and constraint violations quote row values, which errors never carry.
    if error.sqlstate[:2] in ("22", "23"):
        return f"SQLSTATE {error.sqlstate}"
    code = f" ({error.sqlstate})" if error.severity else ""  # without a severity the code is our own guess
    return error.message.rstrip(".") + code


def _failed(error: ServerError, where: Where) -> SourceError:
    return SourceFailed(f"{_place(where)} reported: {_said(error)}.", severity=error.severity)


def _protocol(error: ServerError, where: Where) -> SourceError:
    return ProtocolBroken(f"{_place(where)} does not take part in the replication protocol: {_said(error)}.")


def _refused(error: ServerError, where: Where) -> SourceError:
    remedy = None
    if "pg_hba" in error.message:
        remedy = (
            f"Add a line such as `host {where.database} {where.user} <address of this client>/32 scram-sha-256` to pg_hba.conf "
            "and reload the server; logical replication is matched by the database's name, not by `replication`."
        )
    elif error.sqlstate == "28P01":
        remedy = f"Correct the password of {where.user} in the source's dsn, PGPASSWORD or the password file."
    return SourceRefused(
        f"{_place(where)} refused user {where.user!r} for database {where.database!r}: {_said(error)}.",
        remedy=remedy,
        user=where.user,
        host=where.host,
    )


def _database_missing(error: ServerError, where: Where) -> SourceError:
    return SourceDatabaseMissing(
        f"{_place(where)} has no database {where.database!r}.",
        remedy="Correct its name in the source's dsn; if the database was renamed, the flow goes on under the new name.",
        database=where.database,
    )


def _rights(error: ServerError, where: Where) -> SourceError:
    text = f"{error.message} {error.detail}".lower()
    remedy = None
    # InitPostgres checks the right to be a walsender, CheckMyDatabase the right to connect.
    if error.routine in ("InitPostgres", "CheckSlotPermissions", "check_permissions") or re.search(
        r"wal ?sender|replication", text
    ):
        remedy = f"Run `ALTER ROLE {quoted(where.user)} REPLICATION;` as a superuser."
    elif error.routine == "CheckMyDatabase" or "for database" in text:
        remedy = f"Run `GRANT CONNECT ON DATABASE {quoted(where.database)} TO {quoted(where.user)};`."
    return SourceRights(
        f"User {where.user!r} lacks a right on {_place(where)}, database {where.database!r}: {_said(error)}.",
        remedy=remedy,
        user=where.user,
    )


def _in_use(error: ServerError, where: Where) -> SourceError:
    slot = _quoted_name(error.message)
    if not slot or error.routine not in ("", "ReplicationSlotAcquire", "ReplicationSlotDrop"):
        return _failed(error, where)
    pid = re.search(r"\d+", error.message.replace(slot, ""))
    reader = f"process {pid[0]}" if pid else "another process"
    return SlotInUse(f"The slot {slot!r} of {_place(where)} is being read by {reader}.", slot=slot, pid=int(pid[0]) if pid else 0)


def _undefined_object(error: ServerError, where: Where) -> SourceError:
    name = _quoted_name(error.message)
    if error.routine.startswith("ReplicationSlot") or "replication slot" in error.message:
        return SlotMissing(f"{_place(where)} has no slot {name!r} in database {where.database!r}.", slot=name)
    if error.routine == "get_publication_oid" or "publication" in error.message:
        return PublicationMissing(
            f"Database {where.database!r} of {_place(where)} has no publication {name!r}, or had none when this log was written.",
            remedy="Create the publication. A server before PostgreSQL 18 cannot read on over log from the time without it: then"
            " give the flow a new name and a new slot, and load it again.",
            publication=name,
        )
    return _failed(error, where)


def _not_in_state(error: ServerError, where: Where) -> SourceError:
    text = f"{error.message} {error.detail}"
    if error.routine == "CheckLogicalDecodingRequirements" or "wal_level" in text:
        return SourceSettings(
            f"{_place(where)} does not write a logical log: {_said(error)}.",
            remedy="Run `ALTER SYSTEM SET wal_level = logical;` and restart the server.",
            setting="wal_level",
        )
    if "can no longer" in text or "invalidated" in text or error.routine == "ReplicationSlotAcquire":
        slot = _quoted_name(error.message)
        return SlotLost(f"The slot {slot!r} of {_place(where)} is lost: {error.detail.rstrip('.') or error.message}.", slot=slot)
    return _failed(error, where)


def _log_removed(error: ServerError, where: Where) -> SourceError:
    if "WAL" in error.message or error.routine in ("XLogSegmentOpen", "WalSndSegmentOpen", "wal_segment_open"):
        return SlotLost(f"{_place(where)} has removed log that the slot needs: {_said(error)}.")
    return _failed(error, where)


def _too_many(error: ServerError, where: Where) -> SourceError:
    setting = "max_wal_senders" if "max_wal_senders" in error.message else "max_connections"
    return SourceFailed(
        f"{_place(where)} has no connection left for user {where.user!r}: {_said(error)}.",
        remedy=f"Raise {setting} or close other connections; the worker goes on trying.",
        setting=setting,
    )


def _slots_used_up(error: ServerError, where: Where) -> SourceError:
    return SourceSettings(
        f"{_place(where)} has no replication slot left: {_said(error)}.",
        remedy="Drop a slot that is no longer read, or raise max_replication_slots and restart the server.",
        setting="max_replication_slots",
    )


def _not_now(error: ServerError, where: Where) -> SourceError:
    if "shutting down" in _said(error):
        return SourceStopping(f"{_place(where)} is shutting down.")
    return SourceUnreachable(
        f"{_place(where)} takes no connections now: {_said(error)}.",
        remedy="Nothing to do while the server starts or stops; the worker goes on trying.",
    )


_BY_SQLSTATE = {
    "08P01": _protocol,
    "28000": _refused,
    "28P01": _refused,
    "3D000": _database_missing,
    "42501": _rights,
    "42704": _undefined_object,
    "53300": _too_many,
    "53400": _slots_used_up,
    "55000": _not_in_state,
    "55006": _in_use,
    "57P01": _not_now,
    "57P02": _not_now,
    "57P03": _not_now,
    "58P01": _log_removed,
}


def quoted(name: str) -> str:
    """`name` as an SQL identifier, always in quotes."""
    return '"' + name.replace('"', '""') + '"'


def _quoted_name(text: str) -> str:
    found = re.search(r"[\"«»„“”‹›'「]\s?([^\"«»„“”‹›'」]+?)\s?[\"«»„“”‹›'」]", text)
    return found[1] if found else ""


# libpq keeps the SQLSTATE of a refused connection to itself, and only the English words of its message are left to go by.
_BY_WORDS = (
    (r"password authentication failed|authentication failed for user", "28P01"),
    (
        r"pg_hba\.conf|role .* does not exist|not permitted to log in|no password supplied|SSL|certificate|channel binding|auth",
        "28000",
    ),
    (r"database .* does not exist|not currently accepting connections", "3D000"),
    (r"permission denied|must be superuser|REPLICATION attribute", "42501"),
    (r"too many (clients|connections)|connection slots", "53300"),
    (r"starting up|shutting down|recovery|not yet accepting", "57P03"),
)
_UNREACHABLE = r"refused|timeout|timed out|could not translate|closed the connection|no route|unreachable|reset by|No such file"


def translate_psycopg(error: psycopg.Error, dsn: str) -> SourceError:
    """The error of ours for one that a control connection made with `dsn` has met; never shows a password."""
    try:
        where = _where(error, dsn)
    except SourceError as refusal:
        return refusal
    if error.sqlstate:
        return translate_sqlstate(_diagnosed(error), where)
    if not isinstance(error, psycopg.OperationalError):
        return SourceFailed(f"{_place(where)} could not be asked: {type(error).__name__}.")
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return SourceUnreachable(
            f"{_place(where)} did not answer in time.",
            remedy="Check host, port and firewall, or raise connect_timeout in the source's dsn.",
        )
    return _undiagnosed(error, where)


def _undiagnosed(error: psycopg.OperationalError, where: Where) -> SourceError:
    said = _last_words(str(error))
    _, fatal, message = said.partition("FATAL:")
    if fatal or not re.search(_UNREACHABLE, said, re.IGNORECASE):
        for words, sqlstate in _BY_WORDS:
            if re.search(words, said, re.IGNORECASE):
                found = translate_sqlstate(ServerError("", sqlstate, message.strip() or said), where)
                found.facts.pop("sqlstate")
                return found
        # In another language: a server that was given or wanted a password has most likely refused it.
        if error.pgconn is not None and (error.pgconn.used_password or error.pgconn.needs_password):
            return SourceRefused(f"{_place(where)} refused user {where.user!r}: {said}.", user=where.user, host=where.host)
    return SourceUnreachable(f"{_place(where)} cannot be reached: {said}.")


def _last_words(text: str) -> str:
    # "connection failed: connection to server at "h", port p failed: FATAL:  reason", then perhaps hints in further lines.
    first = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return re.sub(r"^.*failed: |\[Errno -?\d+\] ", "", first).strip().rstrip(".")


def _where(error: psycopg.Error, dsn: str) -> Where:
    info = resolve(dsn)
    where = info.where(info.hosts[0])
    if error.pgconn is None or len(info.hosts) == 1:
        return where
    host, port = error.pgconn.host.decode(), error.pgconn.port.decode()
    return where._replace(host=host, port=int(port)) if host and port.isdigit() else where


def _diagnosed(error: psycopg.Error) -> ServerError:
    diag = error.diag
    return ServerError(
        diag.severity_nonlocalized or diag.severity or "ERROR",
        error.sqlstate or "XX000",
        diag.message_primary or str(error),
        diag.message_detail or "",
        diag.message_hint or "",
        diag.source_function or "",
    )
