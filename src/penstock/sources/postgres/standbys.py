"""Standbys of the source: whether the flow would go on at one that is promoted."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg.sql import Identifier

from penstock.core.finding import Finding
from penstock.sources.postgres import slot
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions

_STANDBYS = """
SELECT pg_catalog.pg_is_in_recovery() AS is_standby,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication r
          LEFT JOIN pg_catalog.pg_replication_slots p ON p.active_pid = r.pid
         WHERE p.slot_type IS DISTINCT FROM 'logical') AS standbys,
       (SELECT pg_catalog.bool_or(p.xmin IS NOT NULL) FROM pg_catalog.pg_replication_slots p
         WHERE p.slot_type = 'physical' AND p.active) AS feedback,
       pg_catalog.current_setting('synchronized_standby_slots', true) <> '' AS held,
       (SELECT (pg_catalog.to_jsonb(s) ->> 'failover')::boolean FROM pg_catalog.pg_replication_slots s
         WHERE s.slot_name = %(slot)s) AS kept
"""


def look(control: Control, options: PostgresOptions, name: str) -> Iterator[Finding]:
    """One finding of advice where standbys are connected and could keep the slot `name`; nothing where there are none."""
    if not options.failover or control.version < slot.FAILOVER_SINCE:
        return
    facts = control.row(_STANDBYS, {"slot": name})
    if facts["is_standby"] or not facts["standbys"]:
        return
    advice = []
    if facts["kept"] is False:
        change = f"ALTER_REPLICATION_SLOT {Identifier(name).as_string(None)} (FAILOVER true)"
        advice.append(f"the slot is not kept on standbys: {change} over a replication connection, while no worker runs")
    if not facts["held"]:
        advice.append("the stream may run ahead of them: name their slots in synchronized_standby_slots")
    if not facts["feedback"]:
        advice.append("standbys need sync_replication_slots = on, hot_standby_feedback = on and primary_slot_name")
    risk = f"; after a fail-over the flow may stop: {'; '.join(advice)}" if advice else ""
    yield Finding("standbys", True, f"{facts['standbys']} connected{risk}")
