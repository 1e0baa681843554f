"""Snapshots kept for many readers: that of a slot at its creation, and that of any moment."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass

from psycopg.sql import SQL, Literal

from penstock.core.position import parse_lsn
from penstock.errors import PenstockError, SourceFailed
from penstock.sources.chunks import SnapshotHold
from penstock.sources.postgres import slot
from penstock.sources.postgres.control import Control, application_name
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.server_errors import quoted
from penstock.sources.postgres.wire import ReplicationConnection

CREATION_SECONDS = 60.0
"""How long older transactions may keep a new slot waiting."""
_OPTIONS_SINCE = 150000
"""CREATE_REPLICATION_SLOT with a list of options in parentheses."""

BEGIN = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_SELF = "SELECT pid, backend_start::text FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()"
_ALIVE = "SELECT 1 FROM pg_catalog.pg_stat_activity WHERE pid = %(pid)s AND backend_start = %(since)s::timestamptz"
_EXPORT = """
SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text,
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))
"""


@dataclass(frozen=True)
class Login:
    """How a new connection of the flow is made."""

    dsn: str
    flow: str
    iam: RdsIam | None = None

    def connect(self, *, replication: bool = False, options: str = "") -> ReplicationConnection:
        """A new pinned session without time limits."""
        extra = {"startup_options": options} if options else {}
        return ReplicationConnection.connect(
            self.dsn, application_name=application_name(self.flow), iam=self.iam, replication=replication, **extra
        )


class Hold(SnapshotHold):
    """A session that does nothing but keep its snapshot, whatever time limits role and database have."""

    def __init__(self, connection: ReplicationConnection, eye: Control) -> None:
        """The session may be one that must not run another command; `eye` is where the server is asked about it."""
        self._connection: ReplicationConnection | None = connection
        self._eye = eye
        ((pid, since),) = connection.query(_SELF)
        self.pid, self._since = int(str(pid)), str(since)
        self.name = self.described = ""
        self.position = 0

    def alive(self) -> bool:
        """Whether the server still has the session."""
        if self._connection is None:
            return False
        try:
            return bool(self._eye.rows(_ALIVE, {"pid": self.pid, "since": self._since}))
        except PenstockError:
            # A server that cannot be asked has most likely lost the session too, and to read anew is always right.
            return False

    def close(self) -> None:
        """Ends the session."""
        if self._connection is not None:
            self._connection.end()
            self._connection = None


def hold(login: Login, eye: Control) -> Hold:
    """The state of now."""
    connection = login.connect()
    try:
        made = Hold(connection, eye)
        # A snapshot names running transactions only up to the newest that has ended: this one ends behind all that run now.
        connection.query("SELECT pg_catalog.pg_current_xact_id()")
        connection.query(BEGIN)
        ((name, described, position, segment),) = connection.query(_EXPORT)
    except BaseException:
        connection.close()
        raise
    made.name, made.described = str(name), str(described)
    made.position = settled(parse_lsn(str(position)), int(str(segment)))
    return made


def create_slot(login: Login, control: Control, eye: Control, name: str, *, failover: bool) -> Hold:
    """Makes the slot over a session that stays, and with it the snapshot of the point from which the slot delivers."""
    failover = failover and slot.may_fail_over(control)
    options = f"(SNAPSHOT 'export'{', FAILOVER' if failover else ''})"
    if control.version < _OPTIONS_SINCE:
        options = "EXPORT_SNAPSHOT"
    connection = login.connect(replication=True)
    try:
        made = Hold(connection, eye)
        # The server gives replication commands no time limit of its own.
        timer = threading.Timer(CREATION_SECONDS, _cancel, (eye, made.pid))
        timer.daemon = True
        timer.start()
        try:
            ((_, point, exported, _),) = connection.query(f"CREATE_REPLICATION_SLOT {quoted(name)} LOGICAL pgoutput {options}")
        except SourceFailed as error:
            blocker = slot.blocked(control, name) if error.facts.get("sqlstate") == "57014" else None
            if blocker is None:
                raise
            raise blocker from error
        finally:
            timer.cancel()
        made.name, made.position = str(exported), parse_lsn(str(point))
        made.described = describe(login, made.name)
    except BaseException:
        connection.close()
        raise
    return made


def describe(login: Login, exported: str) -> str:
    """What an exported snapshot contains, as pg_current_snapshot() says it."""
    with login.connect() as connection:
        connection.query(f"{BEGIN}; {import_snapshot(exported)}")
        ((described,),) = connection.query("SELECT pg_catalog.pg_current_snapshot()::text")
    return str(described)


def import_snapshot(exported: str) -> str:
    """The statement by which a transaction takes another session's snapshot."""
    return f"SET TRANSACTION SNAPSHOT {Literal(exported).as_string(None)}"


def settled(insert: int, segment: int) -> int:
    """The end of the log behind which the next record would stand at `insert`.

    At the start of a page that is before the page's head: a quiet server would never be seen to have flushed the head alone.
    """
    page = insert % 8192
    if page == 24 or insert % segment == 40:
        return insert - page
    return insert


def _cancel(eye: Control, pid: int) -> None:
    with suppress(PenstockError):
        eye.execute(SQL("SELECT pg_catalog.pg_cancel_backend({})").format(Literal(pid)))
