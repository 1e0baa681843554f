"""The driver half of the PostgreSQL source: looks, prepares publication and slot, and asks where the log stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from penstock.core.finding import Finding
from penstock.core.position import format_lsn, parse_lsn
from penstock.core.schema import TableSchema
from penstock.errors import (
    PenstockError,
    SlotMissing,
    SourceDatabaseMissing,
    SourceFailed,
    SourceGap,
    SourceRefused,
    SourceSettings,
    TokenRefused,
)
from penstock.sources.base import Batching, Belonging, Prepared, SourceHealth
from penstock.sources.chunks import LoadSettings
from penstock.sources.postgres import catalog, ddl_function, lineage, message_table, newcomers, publication, slot, standbys
from penstock.sources.postgres.belongings import Belongings
from penstock.sources.postgres.control import Control, has_password
from penstock.sources.postgres.ddl_trigger import DdlTrigger
from penstock.sources.postgres.inventory import Inventory
from penstock.sources.postgres.lineage import HEAD, Lineage
from penstock.sources.postgres.load import hold
from penstock.sources.postgres.load.loading import Loading
from penstock.sources.postgres.options import PostgresOptions, default_name
from penstock.sources.postgres.preflight import Preflight
from penstock.sources.postgres.publication import Plan
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.refusals import (
    bad,
    no_tables,
    publication_gone,
    refuse,
    slot_absent,
    slot_ahead,
    slot_gone,
    slot_taken,
)
from penstock.sources.postgres.state import StateTable
from penstock.sources.postgres.typebook import TypeBook
from penstock.sources.postgres.watch import PostgresWatch

_log = structlog.get_logger()

_HEAD = f"SELECT {HEAD} AS head"
_IDENTITY = """
SELECT s.system_identifier::text AS system, d.oid::text AS database
  FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""

_STARTED = "SELECT pg_catalog.pg_postmaster_start_time() AS at"


class PostgresSource(Loading):
    """A PostgreSQL database as a source; every error it raises is one of ours."""

    def __init__(self, flow: str, options: PostgresOptions) -> None:
        super().__init__(flow, options)
        self.options: PostgresOptions = options
        self.slot = options.slot or default_name(flow)
        self.publication = options.publication or default_name(flow)
        iam = RdsIam.of(options)
        self._control = Control(options.dsn, flow, iam=iam)
        self._state = StateTable(self._control, flow, options)
        self._ddl = DdlTrigger(self._control, flow, options, self.publication)
        # Of its own: a look never waits for a slot that is being made, and what prepares never waits for a look.
        self._eye = Control(options.dsn, flow, patience=30.0, iam=iam)
        self._watch = PostgresWatch(
            self._eye, self.slot, self.publication, self._additions, self._state_by, lambda tables, at: self.joining(tables, at)
        )
        self._lineage: Lineage | None = None
        self._started: Any = None

    def check(self, journal_end: int | None = None) -> list[Finding]:
        """Everything that stands in the way, at once, each with the SQL that mends it; changes nothing."""
        try:
            where = f"{self._control.user}@{self._control.database}"
        except PenstockError as error:
            return _not_connected(error)
        findings = [Finding("server", True, "answers"), Finding("login", True, where)]
        try:
            preflight = self._preflight()
            findings += preflight.server()
            plan = self._plan()
            findings += [*preflight.tables(plan), *preflight.publishing(plan, journal_end)]
            findings += [*self._watch.findings(self._control, plan), preflight.slot(journal_end)]
            findings += [*self._ddl.findings(), *preflight.state(), *standbys.look(self._control, self.options, self.slot)]
        except PenstockError as error:
            findings.append(bad("catalogue", error))
        return findings

    def discover(self) -> list[TableSchema]:
        """The tables that the flow takes, with their keys, as the catalogue has them now."""
        plan = self._plan()
        sends = plan.found.sends if plan.found else {}
        types = TypeBook(self._control, self.options.resolve_types)
        named = {oid: names for oid, names in sends.items() if names is not None}
        found = catalog.describe(self._control, types, plan.takes, named)
        return [*found, message_table.TABLE] if self.options.emit_messages or self.options.capture_ddl else found

    def prepare(self, journal_end: int | None, export: bool = False) -> Prepared:
        """Publication and slot ready for a journal that ends there (None: a new one); idempotent."""
        now = lineage.read(self._control, self.flow) if journal_end is not None else None
        if now is not None and journal_end is not None:
            self._continue(now, journal_end)
        found = slot.find(self._control, self.slot)
        if found is not None and journal_end is None:
            self._refuse_foreign()
        if found is None and journal_end is not None:
            raise slot_gone(self.slot, journal_end, now.timeline if now else 1)
        plan = self._plan()
        if plan.found is None and journal_end is not None:
            raise publication_gone(self.publication)
        if journal_end is not None:
            self._watch.compare(self._control, plan)
        start = parse_lsn(self.options.start_lsn) if journal_end is None and self.options.start_lsn is not None else None
        if start is not None:
            self._check_start(start, found.confirmed if found is not None else None)
        if self.options.validate_replication:
            self._refuse_problems(plan)
        self._prepare_publication(plan, journal_end)
        self._ddl.install(again=journal_end is not None)
        position = self._prepare_slot(found, follows=plan.found is None, export=export)
        if journal_end is not None and position > journal_end:
            raise slot_ahead(self.slot, position, journal_end)
        if start is not None:
            self._check_start(start, position)
            position = start
        self._lineage = now or lineage.read(self._control, self.flow)
        self._started = self._control.row(_STARTED)["at"]
        self._watch.rebase(self._control, self._lineage.head)
        name, described = (self._exported.name, self._exported.described) if self._exported else (None, "")
        return Prepared(self._identity(), position, self._facts(plan, position), name, described)

    def head(self) -> int:
        """The position up to which the server's log is durable now (on a standby: replayed)."""
        return parse_lsn(self._control.row(_HEAD)["head"])

    def confirmed(self) -> int:
        """The position that the server holds as confirmed for this flow."""
        found = slot.find(self._control, self.slot)
        if found is None or found.confirmed is None:
            raise SlotMissing(f"The slot {self.slot} is gone.", slot=self.slot)
        return found.confirmed

    def recipe(self) -> dict[str, Any]:
        """Plain data from which the capture process makes its `Capture`; it holds the dsn, so it is never logged."""
        return {
            "dsn": self.options.dsn,
            "iam": self._control.iam.to_data() if self._control.iam else None,
            "slot": self.slot,
            "publication": self.publication,
            "status_interval": self.options.status_interval,
            "heartbeat_interval": self.options.heartbeat_interval,
            "receive_timeout": self.options.receive_timeout,
            "resolve_types": self.options.resolve_types,
            "server_version": self._control.version,
            "streaming": self.options.streaming,
            "messages": self.options.emit_messages or self.options.capture_ddl,
            "origin": self.options.origin,
            "flow": self.flow,
        }

    def belongings(self) -> list[Belonging]:
        """What the flow has made or uses on the server; changes nothing."""
        return self._belongings().look()

    def drop(self) -> list[Belonging]:
        """Removes the slot, the publication and the record that the flow has made, and nothing else; idempotent."""
        return self._belongings().drop()

    def release(self) -> str | None:
        """Drops the slot, if the flow has made it."""
        return self._belongings().drop_slot(self.slot)

    def recall(self, memory: Mapping[str, Any]) -> None:
        """What `remember` gave; the next `prepare` compares the server with it."""
        if "lineage" in memory:
            self._lineage = Lineage.of_data(memory["lineage"])
        if "inventory" in memory:
            self._watch.recall(Inventory.of_data(memory["inventory"]), self._lineage.head if self._lineage else 0)
        self._watch.wider = [(Inventory.of_data(w["inventory"]), int(w["since"])) for w in memory.get("wider", ())]

    def remember(self) -> dict[str, Any]:
        """System identifier, timeline, head, and what the publication sends, or once sent and no longer does."""
        memory: dict[str, Any] = {}
        if self._lineage is not None:
            memory["lineage"] = {**self._lineage.to_data(), "head": max(self._lineage.head, self._watch.head)}
        if self._watch.known is not None:
            memory["inventory"] = self._watch.known.to_data()
        if self._watch.wider:
            memory["wider"] = [{"inventory": base.to_data(), "since": since} for base, since in self._watch.wider]
        return memory

    def look(self) -> SourceHealth:
        """One cheap look at slot, publication and tables; lets new tables join when the flow may."""
        health = self._watch.look()
        if self._lineage is not None and self._watch.timeline > self._lineage.timeline and self._is_same_process():
            # A standby that was promoted under a running stream: the log goes on, and what it sends is of the new timeline.
            self._lineage = lineage.read(self._eye, self.flow)
        troubles = tuple(DdlTrigger(self._eye, self.flow, self.options, self.publication).troubles())
        return replace(health, findings=(*health.findings, *troubles)) if troubles else health

    def renew(self, options: Any | None) -> bool:
        """Takes the dsn of `options`; a dsn without a password has it read anew from where libpq finds it."""
        if options is not None and (options.dsn, options.snapshot_dsn) != (self.options.dsn, self.options.snapshot_dsn):
            self.options = self.options.model_copy(update={"dsn": options.dsn, "snapshot_dsn": options.snapshot_dsn})
            for control in (self._control, self._eye):
                control.dsn = options.dsn
            return True
        return options is not None or not has_password(self.options.dsn)

    def batching(self) -> Batching:
        """What `batch_size`, `batch_timeout` and `emit_empty` say."""
        return Batching(self.options.batch_size, self.options.batch_timeout, self.options.emit_empty)

    def decoding(self) -> dict[str, Any] | None:
        """Which logical messages are delivered; None for all but those that penstock itself writes."""
        if not self.options.capture_ddl:
            return None
        ddl = {"prefix": self.options.ddl_message_prefix, "head": ddl_function.head(self.flow)}
        return {"ddl": ddl, "messages": self.options.emit_messages}

    def unsent(self, tables: Sequence[TableSchema]) -> list[TableSchema]:
        """Tables that the publication does not send."""
        found = self._plan().found
        sent = set(found.sends) if found is not None else set()
        return [table for table in tables if int(table.identity or 0) not in sent]

    def loading(self) -> LoadSettings:
        """What `snapshot` and its companions say."""
        return self.options.load_settings()

    def completion(self) -> dict[str, Any] | None:
        """How lanes fill unchanged TOASTed columns; it holds the dsn, so it is never logged."""
        if self.options.toast_fetch == "off":
            return None
        return {
            "dsn": self.options.dsn,
            "iam": self._control.iam.to_data() if self._control.iam else None,
            "flow": self.flow,
            "mode": self.options.toast_fetch,
            "cache_size": self.options.toast_cache_size,
            "sees_all": self._sees_all(),
        }

    def _sees_all(self) -> bool:
        """Whether every change that gives a row new values is in the log; deletes need not be, an insert says it all."""
        found = self._plan().found
        return self.options.origin == "any" and (found is None or {"insert", "update"} <= set(found.operations))

    def close(self) -> None:
        """Gives back the connections."""
        self.let_snapshot_go()
        self._control.close()
        self._eye.close()

    def _check_start(self, asked: int, slot_at: int | None) -> None:
        """Refuses a `start_lsn` from which no slot delivers; None is a slot that would have to be made now."""
        if asked > self.head():
            raise SourceSettings(
                f"The server's log ends before start_lsn {format_lsn(asked)}.",
                remedy="Correct start_lsn, or take it out: the flow begins where the slot stands.",
            )
        if slot_at is None:
            raise SourceGap(
                f"The slot {self.slot} does not exist, and a new one would begin beyond start_lsn {format_lsn(asked)}.",
                remedy="Name a `slot` that stands before start_lsn, or take start_lsn out: the flow begins with its new slot.",
                slot=self.slot,
            )
        if asked < slot_at:
            raise SourceGap(
                f"The slot {self.slot} stands at {format_lsn(slot_at)}, beyond start_lsn {format_lsn(asked)}.",
                remedy=f"Set start_lsn to {format_lsn(slot_at)} or later, or take it out: the flow begins where the slot stands.",
                slot=self.slot,
            )

    def _is_same_process(self) -> bool:
        """Whether the look reaches the very server that `prepare` has compared with the journal, not restarted since."""
        return bool(self._eye.row(_STARTED)["at"] == self._started)

    def _belongings(self) -> Belongings:
        return Belongings(self._control, self.flow, self._state, self._ddl, self.slot, self.publication, self.home)

    def _plan(self) -> Plan:
        return publication.plan(self._control, self.options, self.publication, self.flow)

    def _additions(self, control: Control) -> Plan | None:
        """What the flow may add to its publication by itself."""
        if not self.options.ensure_publication:
            return None
        return publication.plan(control, self.options, self.publication, self.flow)

    def _state_by(self, control: Control) -> StateTable:
        return StateTable(control, self.flow, self.options)

    def _continue(self, now: Lineage, journal_end: int) -> None:
        """Whether this server's log goes on where the journal ends."""
        if self._lineage is None:
            return
        told = lineage.compare(self._lineage, now, journal_end)
        if told is not None:
            _log.warning("the flow goes on after a fail-over", flow=self.flow, reason=told)

    def _facts(self, plan: Plan, position: int) -> dict[str, str | int]:
        names = [t.qualified for t in plan.takes]
        return {
            "server": f"{self._control.user}@{self._control.host}/{self._control.database}",
            "version": "{}.{}".format(*divmod(self._control.version, 10000)),
            "slot": self.slot,
            "slot_at": format_lsn(position),
            "publication": self.publication,
            "tables": f"{len(names)}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}",
            "head": format_lsn(self._lineage.head if self._lineage else 0),
            "timeline": self._lineage.timeline if self._lineage else 0,
        }

    def _preflight(self) -> Preflight:
        return Preflight(self._control, self.flow, self.options, self.slot, self.publication)

    def _refuse_problems(self, plan: Plan) -> None:
        preflight = self._preflight()
        findings = [*preflight.server(), *preflight.tables(plan), *preflight.publishing(plan), *self._ddl.findings()]
        refuse(findings, plan)

    def _prepare_publication(self, plan: Plan, journal_end: int | None) -> None:
        if not plan.takes or (plan.surplus and not plan.asked):
            raise no_tables()
        facts = {"tables": self.options.publication_tables, "schemas": self.options.publication_schemas}
        if plan.found is None:
            if self.options.ensure_publication:
                self._control.execute(publication.creation(self.publication, self.flow, plan.missing))
                self._state.record("publication", self.publication, "made", facts)
            return
        if self.options.ensure_publication or self.options.sync_publication:
            if plan.missing:
                # A flow without a journal has its tables by its first load.
                first, head = journal_end is None, self.head()
                tells = (lambda _: self.options.snapshot != "never") if first else (lambda tables: self.joining(tables, head))
                loaded = newcomers.add(self._control, self.publication, plan.missing, tells)
                newcomers.say_joined(plan.missing, self.publication, loaded=loaded)
            if plan.surplus:
                self._control.execute(publication.removal(self.publication, plan.surplus))
        self._state.record("publication", self.publication, "made" if plan.found.made_here else "found", facts)

    def _prepare_slot(self, found: slot.Slot | None, *, follows: bool, export: bool) -> int:
        """Where the slot stands; `follows` says that the publication was made just now, after a slot that is already there."""
        existed = found is not None
        if found is None:
            if not self.options.create_slot:
                raise slot_absent(self.slot)
            self._make_slot(export)
            found = slot.find(self._control, self.slot)
        elif found.active_pid is not None:
            found = slot.released(self._control, found)
        trouble = slot.trouble(found, self._control.database) if found is not None else None
        if trouble is not None:
            raise trouble
        if follows and self.options.ensure_publication and existed:
            # Before 18 a server fails at every change that is older than the publication; none of them could be delivered.
            slot.skip(self._control, self.slot)
            found = slot.find(self._control, self.slot)
        if found is None or found.confirmed is None:
            raise SlotMissing(f"The slot {self.slot} vanished while the flow was being prepared.", slot=self.slot)
        self._state.record("slot", self.slot, "found")
        self._state.claim("slot", self.slot, self.home)
        return found.confirmed

    def _refuse_foreign(self) -> None:
        """A flow that has nothing yet does not take over what a namesake reads: whatever it confirmed, the other would lose."""
        row = next((o for o in self._state.rows() if (o.kind, o.name) == ("slot", self.slot)), None)
        if row is not None and row.is_foreign(self.home):
            raise slot_taken(self.slot, self.flow, row.home, self.home)

    def _make_slot(self, export: bool) -> None:
        # Said first: a slot cannot be made in one transaction with the row, and one that is not recorded would never be removed.
        facts = {"plugin": "pgoutput", "failover": self.options.failover, **({"home": self.home} if self.home else {})}
        self._state.record("slot", self.slot, "making", facts)
        try:
            if export:
                self.let_snapshot_go()
                self._exported = hold.create_slot(
                    self._login(), self._control, self._eye, self.slot, failover=self.options.failover
                )
            else:
                slot.create(self._control, self.slot, failover=self.options.failover)
        except PenstockError:
            self._state.forget_attempt("slot", self.slot)
            raise

    def _identity(self) -> str:
        row = self._control.row(_IDENTITY)
        return hashlib.sha256(f"{row['system']}/{row['database']}".encode()).hexdigest()[:8]


def _not_connected(error: PenstockError) -> list[Finding]:
    if isinstance(error, SourceDatabaseMissing):
        return [Finding("server", True, "answers"), Finding("login", True), bad("database", error)]
    if isinstance(error, TokenRefused):
        return [bad("login", error)]
    if isinstance(error, SourceRefused):
        return [Finding("server", True, "answers"), bad("login", error)]
    subject = "server" if not isinstance(error, SourceFailed) else "session"
    return [bad(subject, error)]
