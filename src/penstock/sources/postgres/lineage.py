"""The lineage: which server and which timeline the journal was copied from, and whether this one continues it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.position import format_lsn, parse_lsn
from penstock.errors import FlowChanged, SourceDiverged, SourceUnreachable
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.wire import ReplicationConnection

# The file name carries the timeline that is written now; the control file learns of a promotion only with a checkpoint.
TIMELINE = """
CASE WHEN pg_catalog.pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint())
     ELSE ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_flush_lsn()), 8))::bit(32)::int END
"""
HEAD = """
CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
     ELSE pg_catalog.pg_current_wal_flush_lsn() END::text
"""
_LINEAGE = f"""
SELECT s.system_identifier::text AS system, {TIMELINE} AS timeline, {HEAD} AS head, pg_catalog.pg_is_in_recovery() AS standby
  FROM pg_catalog.pg_control_system() s
"""

Switches = tuple[tuple[int, int], ...]
"""Earlier timelines of a log, oldest first, each with the position at which it was left."""


@dataclass(frozen=True)
class Lineage:
    """A server's log: which one it is, and how it came to be."""

    system: str
    timeline: int
    switches: Switches
    head: int
    standby: bool = False

    def to_data(self) -> dict[str, Any]:
        """Plain data for the ledger."""
        return {"system": self.system, "timeline": self.timeline, "switches": self.switches, "head": self.head}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Lineage:
        """What `to_data` gave."""
        switches = tuple((int(t), int(p)) for t, p in data["switches"])
        return cls(str(data["system"]), int(data["timeline"]), switches, int(data["head"]))


def read(control: Control, flow: str) -> Lineage:
    """The lineage of the server at the other end."""
    row = control.row(_LINEAGE)
    switches = _history(control, flow, row["timeline"]) if row["timeline"] > 1 else ()
    return Lineage(row["system"], row["timeline"], switches, parse_lsn(row["head"]), row["standby"])


def compare(before: Lineage, now: Lineage, journal_end: int) -> str | None:
    """What has happened since, for the log; SourceDiverged when the journal holds what this server's log does not."""
    if now.system != before.system:
        raise FlowChanged(
            f"The server is another one: its system identifier is {now.system}, and the flow was begun on {before.system}.",
            remedy="Point the dsn at the flow's own server or at a standby of it; for a new server give the flow a new name.",
            system=now.system,
        )
    told = _compare_timelines(before, now, journal_end)
    if now.head >= journal_end:
        return told
    if now.standby:
        raise SourceUnreachable(
            f"The standby has replayed the log up to {format_lsn(now.head)} only; the journal ends at {format_lsn(journal_end)}.",
            remedy="Nothing to do while it catches up; the worker goes on trying. Or point the dsn at the primary.",
        )
    raise SourceDiverged(
        f"The server's log ends at {format_lsn(now.head)}, before the journal's end {format_lsn(journal_end)}: it was restored"
        f" from an older copy, and the journal holds ({format_lsn(now.head)}, {format_lsn(journal_end)}] that it does not have.",
        head=format_lsn(now.head),
        journal=format_lsn(journal_end),
    )


def _compare_timelines(before: Lineage, now: Lineage, journal_end: int) -> str | None:
    path = (*now.switches, (now.timeline, 1 << 63))
    same = before.switches == path[: len(before.switches)]
    left = dict(path).get(before.timeline) if same else None
    if left is None:
        fork = min((p for p in (*before.switches, *now.switches) if (p in before.switches) != (p in now.switches)), default=None)
        where = f", and has parted from it at {format_lsn(fork[1])} at the latest" if fork else ""
        raise SourceDiverged(
            f"The server is on timeline {now.timeline}, which does not come after the flow's timeline {before.timeline}{where};"
            f" the journal ends at {format_lsn(journal_end)}.",
            timeline=now.timeline,
            journal=format_lsn(journal_end),
        )
    if before.timeline == now.timeline:
        return None
    promoted = f"from timeline {before.timeline} to {now.timeline} at {format_lsn(left)}"
    if journal_end > left:
        raise SourceDiverged(
            f"The server was promoted or restored {promoted}, but the journal ends at {format_lsn(journal_end)}:"
            f" it holds ({format_lsn(left)}, {format_lsn(journal_end)}] of the old timeline, which the new one does not have.",
            remedy="Give the flow a new name and a new slot, and load its destinations again. To be spared this the next time,"
            " name the standby's slot in synchronized_standby_slots (PostgreSQL 17 and newer).",
            timeline=now.timeline,
            switch=format_lsn(left),
            journal=format_lsn(journal_end),
        )
    return (
        f"the server was promoted {promoted}; the journal's end {format_lsn(journal_end)} is before that, so nothing is missing"
    )


def _history(control: Control, flow: str, timeline: int) -> Switches:
    with ReplicationConnection.connect(control.dsn, application_name=f"penstock {flow}", iam=control.iam) as connection:
        rows = connection.query(f"TIMELINE_HISTORY {timeline}")
    found = re.findall(r"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", rows[0][1] or "", re.MULTILINE)
    return tuple((int(number), parse_lsn(position)) for number, position in found)
