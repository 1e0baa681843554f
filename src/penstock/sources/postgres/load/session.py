"""The session of a reader: one transaction a chunk, in a shared snapshot or one of its own, over a table that still fits."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from psycopg.sql import Literal

from penstock.core.position import parse_lsn
from penstock.core.schema import TableSchema
from penstock.errors import (
    PenstockError,
    ReadStopped,
    ReadTooLong,
    ReplicaBehind,
    SnapshotLost,
    SourceError,
    SourceFailed,
    SourceRights,
    SourceSettings,
    SourceUnreachable,
    TableChanged,
    TableGone,
)
from penstock.sources.chunks import Chunk, Stopping
from penstock.sources.postgres.load import statements
from penstock.sources.postgres.load.hold import BEGIN, Login, import_snapshot, settled
from penstock.sources.postgres.load.replica import PATIENCE, Replica
from penstock.sources.postgres.wire import SESSION_OPTIONS, ReplicationConnection

# A row that a policy hides would be missing without a word: with row_security off the server refuses the query instead.
_SESSION: Final = f"{SESSION_OPTIONS} -c row_security=off"
# A reader that is killed must not leave a scan behind that has nothing to send for hours; not every platform has it.
_NOTICE: Final = "SET client_connection_check_interval = '5s'"
_ATTEMPTS: Final = 5

_SNAPSHOT_LOST: Final = ("22023", "42704", "55000", "58P01", "72000")
_TOO_LONG: Final = ("57014", "25P03", "25P04", "57P05")
_UNDEFINED: Final = ("42P01", "3F000", "42703")

# Under the snapshot pg_class is as it was then, while functions know the files of now: they differ when the table was rewritten
# or emptied in between, which no snapshot is safe from.
_CHECK: Final = """
SELECT pg_catalog.pg_current_snapshot()::text,
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()::text
            ELSE pg_catalog.pg_current_wal_insert_lsn()::text END,
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')),
       pg_catalog.to_regclass({name})::pg_catalog.oid, pg_catalog.pg_relation_filenode({oid}),
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class c WHERE c.oid = {oid}),
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class c
         WHERE c.oid IN (SELECT {oid} UNION SELECT t.relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree({oid}) t)
           AND c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_catalog.pg_relation_filenode(c.oid))
"""
_ENUMS: Final = "SELECT oid FROM pg_catalog.pg_type WHERE typtype = 'e' AND typsend = 'pg_catalog.enum_send'::pg_catalog.regproc"


@dataclass(frozen=True)
class Opened:
    """A transaction that holds the table as its chunk wants it."""

    name: str
    """What the table is called now, as SQL writes it."""
    described: str
    position: int
    exists: bool
    """Whether the snapshot knows the table; one that was made later has no rows in it."""
    forms: Sequence[str] | None
    """The binary form of each column; None when the table is read as text."""


class Session:
    """One connection, kept from chunk to chunk; errors are ours."""

    def __init__(self, login: Login, replica: Replica | None = None, *, binary: bool = False) -> None:
        """With `binary` tables are read in binary form where all of their columns have an exact one."""
        self._login, self._replica, self._binary = login, replica, binary
        self.connection: ReplicationConnection | None = None
        self._enums: dict[tuple[int, ...], frozenset[int]] = {}

    def open(self, chunk: Chunk, table: TableSchema, snapshot: str | None, after: int, stopping: Stopping) -> Opened:
        """Begins the transaction of a chunk."""
        kept = self.connection is not None
        try:
            return self._patiently(chunk, table, snapshot, after, stopping)
        except SourceUnreachable:
            # The server was restarted, or has ended an idle session, since the last chunk.
            self.drop()
            if not kept:
                raise
            return self._patiently(chunk, table, snapshot, after, stopping)

    def end(self) -> None:
        """Ends the transaction and keeps the connection."""
        if self.connection is not None:
            self.connection.query("COMMIT")

    def drop(self) -> None:
        """Gives the connection up, also in the middle of a COPY."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """Gives the connection back."""
        if self.connection is not None:
            self.connection.end()
            self.connection = None

    def _patiently(self, chunk: Chunk, table: TableSchema, snapshot: str | None, after: int, stopping: Stopping) -> Opened:
        """In a snapshot of its own, a table that was rewritten just when it was taken is simply looked at once more."""
        name = str(chunk.bounds["name"])
        deadline = time.monotonic() + PATIENCE if self._replica is not None else 0.0
        attempt = 0
        while attempt < _ATTEMPTS or time.monotonic() < deadline:
            attempt += 1
            opened, name = self._once(chunk, table, snapshot, after, stopping, name)
            if opened is not None:
                return opened
            self._connected().query("ROLLBACK")
            if stopping():
                raise ReadStopped("The read of a chunk was given up.")
        if self._replica is not None:
            raise ReplicaBehind(f"The replica replays too busily to say which rows of {chunk.qualified} it shows.")
        raise changed(chunk, "is being rewritten or renamed again and again")

    def _once(
        self, chunk: Chunk, table: TableSchema, snapshot: str | None, after: int, stopping: Stopping, name: str
    ) -> tuple[Opened | None, str]:
        """The transaction, or None and the name under which to look again."""
        connection = self._connected()
        if self._replica is not None:
            self._replica.reach(connection, after, stopping)
        connection.query(BEGIN)
        if snapshot is not None:
            self._import(connection, snapshot)
        try:
            found = connection.describe(statements.probe(table, name, bool(chunk.bounds["only"])))
        except SourceError as error:
            if error.facts.get("sqlstate") not in _UNDEFINED:
                raise
            connection.query("ROLLBACK")
            now = self._name(connection, chunk)
            if now == name:
                raise changed(chunk, "no longer has the columns that it was planned with") from error
            return None, now
        oid = int(chunk.bounds["oid"])
        ((described, position, segment, owner, filenode, exists, rewritten),) = connection.query(
            _CHECK.format(oid=oid, name=Literal(name).as_string(None))
        )
        if owner is None or int(owner) != oid:
            connection.query("ROLLBACK")
            return None, self._name(connection, chunk)
        if int(str(rewritten)):
            if snapshot is None:
                return None, name
            raise changed(chunk, "was rewritten or emptied since the snapshot was taken")
        if digest(found) != chunk.bounds["digest"]:
            raise changed(chunk, "has other columns than when it was planned")
        if int(chunk.bounds.get("filenode") or 0) not in (0, int(filenode or 0)):
            raise changed(chunk, "was rewritten since it was planned, so that its rows stand elsewhere")
        if self._replica is not None and self._replica.is_standby:
            exact = self._replica.describe(connection, str(described))
            if exact is None:
                return None, name
            described = exact
        at = settled(parse_lsn(str(position)), int(str(segment)))
        forms = None
        if self._binary:
            # It needs a compiler, and whoever only plans passes by here too.
            from penstock.sources.postgres.load.forms import chosen, unknown

            forms = chosen(found, table, self._which_are_enums(connection, tuple(unknown(found))))
        return Opened(name, str(described), at, bool(int(str(exists))), forms), name

    def _import(self, connection: ReplicationConnection, snapshot: str) -> None:
        try:
            connection.query(import_snapshot(snapshot))
        except SourceError as error:
            if error.facts.get("sqlstate") not in _SNAPSHOT_LOST:
                raise
            raise SnapshotLost(f"The snapshot {snapshot} is no more.", snapshot=snapshot) from error

    def _name(self, connection: ReplicationConnection, chunk: Chunk) -> str:
        """What the chunk's table is called now; it may have been renamed."""
        ((name,),) = connection.query(f"SELECT {int(chunk.bounds['oid'])}::pg_catalog.regclass::text")
        if str(name).isdecimal():
            raise TableGone(f"The table {chunk.qualified} does not exist any more.", table=chunk.qualified)
        return str(name)

    def _which_are_enums(self, connection: ReplicationConnection, oids: tuple[int, ...]) -> frozenset[int]:
        """Which of the types are sent as the text that they are."""
        if not oids:
            return frozenset()
        if oids not in self._enums:
            wanted = ", ".join(map(str, oids))
            found = connection.query(f"{_ENUMS} AND oid IN ({wanted})")
            self._enums[oids] = frozenset(int(str(oid)) for (oid,) in found)
        return self._enums[oids]

    def _connected(self) -> ReplicationConnection:
        if self.connection is None:
            login = self._replica.login if self._replica is not None else self._login
            connection = login.connect(options=_SESSION)
            try:
                with suppress(SourceFailed):
                    connection.query(_NOTICE)
                if self._replica is not None:
                    self._replica.meet(connection)
            except BaseException:
                connection.close()
                raise
            self.connection = connection
        return self.connection


def digest(columns: Sequence[tuple[str, int, int]]) -> str:
    """What two descriptions of the same columns have in common."""
    return hashlib.sha256(json.dumps([list(c) for c in columns]).encode()).hexdigest()[:16]


def changed(chunk: Chunk, what: str) -> TableChanged:
    """The error for a table that no longer fits its chunk."""
    return TableChanged(f"{chunk.qualified} {what}.", table=chunk.qualified, chunk=chunk.number)


def explained(error: SourceError, chunk: Chunk, user: str, facts: Mapping[str, Any]) -> PenstockError:
    """What an error of the server means for a chunk."""
    state = error.facts.get("sqlstate")
    if state in _TOO_LONG:
        return ReadTooLong(f"The server ended the read of chunk {chunk.number} of {chunk.qualified} ({state}).", **facts)
    if state == "72000":
        return SnapshotLost("The server no longer keeps what the snapshot sees (old_snapshot_threshold).", **facts)
    if state == "40001":
        return ReplicaBehind(
            f"The replica ended the read of chunk {chunk.number} of {chunk.qualified}, because replay needed the rows gone.",
            remedy="Set hot_standby_feedback = on there, or raise max_standby_streaming_delay.",
            **facts,
        )
    if str(state)[:2] == "22" and chunk.bounds.get("filter"):
        # The server computes nothing for us but the condition: another try would meet the same row.
        return SourceSettings(
            f"The condition by which rows of {chunk.qualified} are chosen fails on one of them (SQLSTATE {state}).",
            remedy="Correct `--where`, or the row filter of the publication, so that it holds for every row, and ask again.",
            **facts,
        )
    if isinstance(error, SourceRights):
        return SourceRights(
            f"The role {user} may not read all rows of {chunk.qualified}.",
            remedy=f"GRANT SELECT ON {chunk.bounds['name']} TO the role, and USAGE on its schema; where the table has row level"
            " security, the role needs BYPASSRLS.",
            **facts,
        )
    return error
