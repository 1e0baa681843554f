"""The watch: one cheap look every few seconds at the slot, the publication and the tables of a running flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, LiteralString

import structlog

from penstock.core.finding import Finding
from penstock.core.options import format_size
from penstock.core.position import format_lsn, parse_lsn
from penstock.errors import PenstockError, PublicationMissing, PublicationNarrowed, SlotMissing
from penstock.sources.base import Joining, SourceHealth
from penstock.sources.postgres import catalog, difference, inventory, publication, slot
from penstock.sources.postgres.control import Control, Row
from penstock.sources.postgres.difference import Difference
from penstock.sources.postgres.gauge import Gauge
from penstock.sources.postgres.inventory import Inventory
from penstock.sources.postgres.lineage import HEAD, TIMELINE
from penstock.sources.postgres.newcomers import Newcomers
from penstock.sources.postgres.publication import Plan
from penstock.sources.postgres.server_errors import quoted
from penstock.sources.postgres.state import StateTable

_log = structlog.get_logger()

DANGER_SECONDS = 15 * 60.0
"""Less time than this before the slot could be lost is worth a warning."""
DANGER_BYTES = 16 << 20
"""Less room than one segment of the log is, too, whatever the rate."""
WIDEN = "Widen it again by hand, and load again what changed meanwhile; if it is meant, destinations do without such changes."

# Sums of hashes: whether anything has changed is decided on the server, and nothing but a number travels.
_LOOK: LiteralString = f"""
SELECT {HEAD} AS head, {TIMELINE} AS timeline, s.confirmed_flush_lsn::text AS confirmed, s.restart_lsn::text AS restart,
       s.wal_status, s.safe_wal_size, p.oid::bigint AS publication,
       pg_catalog.concat_ws('/', p.oid, p.xmin, (
           SELECT pg_catalog.sum(pg_catalog.hashtextextended(pg_catalog.concat_ws('/', r.oid, r.xmin), 0))
             FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid)) AS published,
       (SELECT pg_catalog.sum(pg_catalog.hashtextextended(pg_catalog.concat_ws('/', c.oid, c.relnamespace, c.relname,
               c.relreplident, c.relispartition, CASE WHEN c.relispartition THEN c.relfilenode END), 0))::text
          FROM pg_catalog.pg_class c
         WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384) AS tables
  FROM (SELECT) one
  LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %(slot)s
  LEFT JOIN pg_catalog.pg_publication p ON p.pubname = %(publication)s
"""
_SCHEMAS = """
SELECT pg_catalog.sum(pg_catalog.hashtextextended(pg_catalog.concat_ws('/', s.oid, s.xmin), 0))::text AS schemas
  FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = %(publication)s
"""


class PostgresWatch:
    """Compares each look with the one before; `known` is what the flow relies on and is the baseline of the next look."""

    def __init__(
        self,
        control: Control,
        slot_name: str,
        publication_name: str,
        plan: Callable[[Control], Plan | None],
        state: Callable[[Control], StateTable],
        joining: Joining,
    ) -> None:
        """`plan` says what the flow may add to its publication, None when it may add nothing; `state` what operators have said of
        tables; `joining` is told of tables before they count as known."""
        self._control, self._slot, self._publication = control, slot_name, publication_name
        self._newcomers, self._state = Newcomers(control, publication_name, plan, joining), state
        self._joining = joining
        self._gauge = Gauge()
        self._print: tuple[Any, ...] | None = None
        self._findings: dict[str, Finding] = {}
        self._since = self._vouched = 0
        self._rebased = 0
        self.wider: list[tuple[Inventory, int]] = []
        """What the publication once sent and no longer does, each with the position up to which it was seen to."""
        self.known: Inventory | None = None
        self.head = 0
        self.timeline = 0

    def recall(self, known: Inventory, head: int) -> None:
        """What an earlier run relied on, and up to where it has looked."""
        self.known, self._since = known, head

    def rebase(self, control: Control, head: int) -> None:
        """Takes what is there now as what the flow relies on: `prepare` has looked at it, and perhaps made it."""
        self._rebased += 1
        self.known, self._print = inventory.take(control, self._publication), None
        self._since = self._vouched = head

    def compare(self, control: Control, plan: Plan) -> None:
        """Before the flow adds to its publication again: what was taken out of it meanwhile is not papered over."""
        now = inventory.take(control, self._publication)
        if self.known is None or now is None:
            return
        found = difference.compare(self.known, now)
        if refusal := self._taken_out(found, now, plan):
            raise refusal
        if found.narrowed or found.removed:
            self.wider.append((self.known, self._since))
        said = self._less(control, now)
        # What was widened again, or is left out by command, need not be told at the next start.
        self.wider = [base for base in self.wider if base in said.values()]
        for sentence, (_, since) in said.items():
            _log.warning(
                "the publication sends less than it did",
                publication=self._publication,
                reason=sentence,
                missing=f"such changes after {format_lsn(since)}",
                remedy=WIDEN,
            )
        self._tell(found, self._since)
        self._join(control, found, self._since)

    def findings(self, control: Control, plan: Plan) -> Iterator[Finding]:
        """What earlier runs had and the publication no longer sends; changes nothing."""
        now = inventory.take(control, self._publication)
        if self.known is None or now is None:
            return
        if refusal := self._taken_out(difference.compare(self.known, now), now, plan):
            yield Finding(f"publication {self._publication}", False, refusal.message, refusal.remedy, refusal.code)
            return
        for sentence, (_, since) in self._less(control, now, (self.known, self._since)).items():
            detail = f"It sends less than it did: {sentence}. Such changes after {format_lsn(since)} may be missing."
            yield Finding(f"publication {self._publication}", True, detail, WIDEN, PublicationNarrowed.code)

    def _taken_out(self, found: Difference, now: Inventory, plan: Plan) -> PublicationNarrowed | None:
        """The refusal to add tables again in silence that somebody has taken out."""
        missing = {t.oid for t in plan.missing}
        taken = {oid: name for oid, name in found.removed.items() if oid in missing}
        if not taken:
            return None
        return self._narrowed([f"{name} was taken out of it" for name in taken.values()], now, list(taken), self._since)

    def _less(self, control: Control, now: Inventory, *more: tuple[Inventory, int]) -> dict[str, tuple[Inventory, int]]:
        """How the publication sends less than it once did, each with the oldest inventory that shows it."""
        said: dict[str, tuple[Inventory, int]] = {}
        left_out = self._state(control).left_out()
        for base in (*self.wider, *more):
            found = difference.compare(base[0], now)
            removed = [f"{name} was taken out of it" for oid, name in found.removed.items() if oid not in left_out]
            for sentence in (*found.narrowed, *removed):
                said.setdefault(sentence, base)
        return said

    def look(self) -> SourceHealth:
        """How the slot is, and whether what the flow relies on is still there."""
        rebased = self._rebased
        row = self._control.row(_LOOK, {"slot": self._slot, "publication": self._publication})
        now, head = time.monotonic(), parse_lsn(row["head"])
        confirmed = parse_lsn(row["confirmed"]) if row["confirmed"] else 0
        self._gauge.note(now, head, confirmed)
        error = self._slot_error(row) or self._look_at_tables(row, head, rebased)
        if self.timeline and row["timeline"] != self.timeline:
            _log.info("the server has begun a new timeline", timeline=row["timeline"], position=format_lsn(head))
        self.timeline, self.head = row["timeline"], head
        rate, safe = self._gauge.rate(), row["safe_wal_size"]
        health = SourceHealth(
            head=head,
            confirmed=confirmed,
            lag_bytes=max(0, head - confirmed),
            lag_seconds=self._gauge.age(now, confirmed),
            retained_bytes=max(0, head - parse_lsn(row["restart"])) if row["restart"] else 0,
            state=row["wal_status"] or "gone",
            safe_bytes=safe,
            seconds_left=max(0, safe) / rate if safe is not None and rate > 0 else None,
            error=error,
        )
        # The catalogue of this look was read a moment before its head, so it vouches only for the head of the look before.
        self._since, self._vouched = self._vouched, head
        self._note_danger(health)
        return replace(health, findings=(*self._findings.values(), *self._newcomers.waiting))

    def _slot_error(self, row: Row) -> PenstockError | None:
        if row["wal_status"] is None or row["confirmed"] is None:
            found = slot.find(self._control, self._slot)
            if found is None:
                return SlotMissing(f"The slot {self._slot} was dropped while the flow ran.", slot=self._slot)
        if row["wal_status"] == "lost":
            found = slot.find(self._control, self._slot)
            return slot.trouble(found, self._control.database) if found is not None else None
        return None

    def _look_at_tables(self, row: Row, head: int, rebased: int) -> PenstockError | None:
        schemas = None
        if row["publication"] is not None and self._control.version >= publication.SCHEMAS_SINCE:
            schemas = self._control.row(_SCHEMAS, {"publication": row["publication"]})["schemas"]
        seen = (row["published"], row["tables"], schemas)
        if seen == self._print and not self._newcomers.are_due():
            return None
        now = inventory.take(self._control, self._publication)
        if rebased != self._rebased:
            # Capture has reconnected meanwhile, and `prepare` has made the comparison.
            return None
        if now is None:
            return self._publication_missing()
        if self.known is not None:
            found = difference.compare(self.known, now)
            removed = self._not_left_out(found.removed)
            sentences = [*found.narrowed, *(f"{name} was taken out of it" for name in removed.values())]
            if sentences:
                return self._narrowed(sentences, now, list(removed), self._since)
            self._tell(found, head)
            self._join(self._control, found, self._vouched)
        self.known = now
        joined = self._newcomers.join(now, head)
        if joined is not None:
            self._settle([now.existing.get(t.oid, "") for t in joined.tables] if joined.loaded else [])
            self.known = inventory.take(self._control, self._publication)
        self._print = None if joined else seen
        return None

    def _join(self, control: Control, found: Difference, since: int) -> None:
        """Tells of tables that others have put into the publication; those that a command has, it has dealt with."""
        wanted = found.joined.keys() - found.complete
        if not wanted:
            return
        wanted -= self._state(control).without_rows()
        tables = [t for t in catalog.tables(control) if t.oid in wanted]
        if tables and self._joining([(t.schema, t.name) for t in tables], since):
            self._settle([found.joined[t.oid] for t in tables])

    def _settle(self, names: Iterable[str]) -> None:
        """These tables are loaded: nobody has to do it."""
        for name in names:
            self._findings.pop(f"table {name}", None)

    def _not_left_out(self, removed: dict[int, str]) -> dict[int, str]:
        """The tables that nobody has told us about; those that an operator has taken out by command are let go."""
        left_out = self._state(self._control).left_out() if removed else frozenset()
        for oid, name in removed.items():
            if oid in left_out:
                _log.info("table was taken out of the publication by command", table=name, publication=self._publication)
        return {oid: name for oid, name in removed.items() if oid not in left_out}

    def _tell(self, found: Difference, head: int) -> None:
        place = format_lsn(head)
        for name in found.dropped:
            _log.warning("table dropped at the source; destinations keep its rows", table=name, position=place)
        for name in found.joined.values():
            _log.info("table is sent from now on", table=name, position=place)
        for old, new in found.renamed.items():
            _log.warning(
                "table renamed at the source; destinations begin a new table and keep the old one as it is",
                table=old,
                renamed=new,
                position=place,
                remedy=f"Rename {old} to {new} at the destinations that keep tables, or load {new} again and drop {old} there.",
            )
        for name, why in found.reloads.items():
            since = f" This was noticed at {place}."
            remedy = f"Load {name} again at the destinations."
            self._find(f"table {name}", f"Re-sync needed: {why}.{since}", remedy, "resync_needed")

    def _find(self, subject: str, detail: str, remedy: str, code: str) -> None:
        self._findings[subject] = Finding(subject, False, detail, remedy, code)

    def _note_danger(self, health: SourceHealth) -> None:
        subject = f"slot {self._slot}"
        left = health.seconds_left
        few = health.safe_bytes is not None and health.safe_bytes < DANGER_BYTES
        if health.state != "unreserved" and not few and (left is None or left > DANGER_SECONDS):
            self._findings.pop(subject, None)
            return
        time_left = f", which is {_minutes(left)} at the present rate" if left is not None else ""
        room = f"; {format_size(max(0, health.safe_bytes))} more{time_left}" if health.safe_bytes is not None else ""
        kept = format_size(health.retained_bytes)
        detail = f"The server keeps {kept} of log for the slot ({health.state}){room}, and it is lost for good."
        remedy = "See why destinations lag; ALTER SYSTEM SET max_slot_wal_keep_size = '…'; SELECT pg_reload_conf(); gives time."
        self._find(subject, detail, remedy, "slot_endangered")

    def _publication_missing(self) -> PublicationMissing:
        names = ", ".join(self.known.sent.values()) if self.known and self.known.sent else "…"
        return PublicationMissing(
            f"The publication {self._publication} was dropped while the flow ran: what changed after"
            f" {format_lsn(self._since)} may be missing from the stream.",
            remedy=f"Create it again by hand (CREATE PUBLICATION {quoted(self._publication)} FOR TABLE {names} WITH"
            " (publish_via_partition_root = true);), start the worker, and load again what changed meanwhile.",
            publication=self._publication,
            after=format_lsn(self._since),
        )

    def _narrowed(self, sentences: list[str], now: Inventory, removed: list[int], since: int) -> PublicationNarrowed:
        add = ", ".join(now.existing[oid] for oid in removed)
        fix = f"ALTER PUBLICATION {quoted(self._publication)} ADD TABLE {add};" if add else "Widen it again by hand."
        return PublicationNarrowed(
            f"The publication {self._publication} sends less than it did: {'; '.join(sentences)}. Such changes after"
            f" {format_lsn(since)} may be missing from the stream.",
            remedy=f"{fix} Then start the worker, and load again what changed meanwhile.",
            publication=self._publication,
            after=format_lsn(since),
        )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
