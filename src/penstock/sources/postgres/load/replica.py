"""A replica that serves reads: waited for, and asked exactly what it shows.

On a standby pg_current_snapshot() names no running transactions: everything between its two ends may or may not be visible.
Which are, is found by asking for their state before and after the snapshot was taken: one that had ended before is in the
snapshot, one that runs afterwards is not. When any other ended in between, the snapshot cannot be described, and another one
is taken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from penstock.core.position import format_lsn, parse_lsn
from penstock.errors import ReadStopped, ReplicaBehind, SourceSettings
from penstock.sources.chunks import Stopping
from penstock.sources.postgres.load.hold import Login
from penstock.sources.postgres.load.visibility import Described
from penstock.sources.postgres.wire import ReplicationConnection

PATIENCE = 60.0
"""Seconds that a replica is waited for."""
MOST_RUNNING = 200_000
"""How many transactions may lie between the oldest that runs and the newest: each has to be asked for."""

_STATE = """
SELECT pg_catalog.pg_is_in_recovery()::text, pg_catalog.pg_last_wal_replay_lsn()::text,
       (SELECT system_identifier::text FROM pg_catalog.pg_control_system())
"""
_REPLAYED = "SELECT pg_catalog.pg_is_in_recovery()::text, pg_catalog.pg_last_wal_replay_lsn()::text"
_BOUNDS = "SELECT pg_catalog.pg_current_snapshot()::text"
_RUNNING = """
SELECT x FROM pg_catalog.generate_series({lower}::bigint, {upper}::bigint - 1) x
 WHERE pg_catalog.pg_xact_status(x::text::pg_catalog.xid8) = 'in progress'
"""


@dataclass
class Replica:
    """A standby of the flow's server; a server that has been promoted since is read like any primary."""

    login: Login
    system: str
    """The primary's system identifier."""
    is_standby: bool = True
    _before: Described = field(default_factory=lambda: Described(0, 0, ()))

    def meet(self, connection: ReplicationConnection) -> None:
        """Refuses a server that is no copy of the flow's."""
        ((standby, _, system),) = connection.query(_STATE)
        if system != self.system:
            raise SourceSettings(
                f"{connection.where.address} is not a replica of the flow's server.",
                remedy="Correct `snapshot_dsn` in the source's options, or take it out.",
            )
        self.is_standby = standby == "true"

    def reach(self, connection: ReplicationConnection, after: int, stopping: Stopping) -> None:
        """Waits until everything up to `after` is visible there, and notes what runs just before the snapshot is taken."""
        deadline = time.monotonic() + PATIENCE
        while True:
            ((standby, replayed),) = connection.query(_REPLAYED)
            self.is_standby = standby == "true"
            if not self.is_standby or (replayed is not None and parse_lsn(replayed) >= after):
                break
            if stopping():
                raise ReadStopped("The wait for the replica was given up.")
            if time.monotonic() > deadline:
                raise ReplicaBehind(
                    f"{connection.where.address} has replayed up to {replayed or 'nowhere'}, but {format_lsn(after)} is needed.",
                    replayed=str(replayed),
                )
            time.sleep(0.05)
        if self.is_standby:
            ((bounds,),) = connection.query(_BOUNDS)
            self._before = self._running(connection, Described.parse(str(bounds)))

    def describe(self, connection: ReplicationConnection, described: str) -> str | None:
        """What the transaction's snapshot contains, exactly; None when that cannot be told for this one."""
        taken = self._running(connection, Described.parse(described))
        before, after = self._before, set(taken.running)
        ended = (x for x in range(taken.lower, taken.upper) if x not in after)
        running_before = set(before.running)
        if any(x >= before.upper or x in running_before for x in ended):
            return None
        return str(taken)

    def _running(self, connection: ReplicationConnection, bounds: Described) -> Described:
        if bounds.upper - bounds.lower > MOST_RUNNING:
            raise ReplicaBehind(
                f"{bounds.upper - bounds.lower} transactions lie behind the oldest that runs: too many to be asked for.",
                remedy="Wait for the oldest transaction to end, or read from the primary: take `snapshot_dsn` out.",
            )
        rows = connection.query(_RUNNING.format(lower=bounds.lower, upper=bounds.upper))
        return Described(bounds.lower, bounds.upper, tuple(int(str(row[0])) for row in rows))
