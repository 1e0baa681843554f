"""The flow's publication as an operator handles it: listed, extended, narrowed, brought in line, and what could be in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from psycopg.sql import Identifier

from penstock.core.naming import fits
from penstock.errors import PenstockError, PublicationMissing, SourceSettings, TablesMissing
from penstock.sources.postgres import catalog, publication, slot
from penstock.sources.postgres.catalog import Table
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions, default_name
from penstock.sources.postgres.preflight import Preflight
from penstock.sources.postgres.publication import Plan, Publication
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.refusals import identities_missing, names, not_owner, refuse, slot_busy
from penstock.sources.postgres.state import StateTable

Mode = Literal["add", "sync"]

# to_jsonb: attnames, rowfilter and prattrs exist from 15; a missing column is NULL here and no error.
_DETAILS = """
SELECT c.oid::bigint AS oid, pg_catalog.to_jsonb(t) ->> 'rowfilter' AS filter,
       CASE WHEN pg_catalog.to_jsonb(r) ->> 'prattrs' IS NOT NULL THEN pg_catalog.to_jsonb(t) -> 'attnames' END AS columns
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
  LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE t.pubname = %(name)s
"""
_SIZES = """
SELECT c.oid::bigint AS oid, c.relkind = 'p' AS partitioned, s.rows, s.bytes
  FROM pg_catalog.pg_class c
 CROSS JOIN LATERAL (
       SELECT pg_catalog.sum(p.reltuples) FILTER (WHERE p.reltuples >= 0)::bigint AS rows,
              pg_catalog.sum(pg_catalog.pg_total_relation_size(p.oid))::bigint AS bytes
         FROM pg_catalog.pg_class p
        WHERE p.relkind = 'r' AND (p.oid = c.oid OR c.relkind = 'p'
              AND p.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t))) s
 WHERE c.oid = ANY (%(oids)s::pg_catalog.oid[])
"""
_IDENTITIES = {"d": "key", "i": "index", "f": "full", "n": "nothing"}


@dataclass(frozen=True)
class PublishedTable:
    """A table that the publication sends."""

    schema: str
    name: str
    by: str
    """Why it is sent: named, schema, or all."""
    columns: tuple[str, ...] | None
    """The columns of a column list; None when there is none."""
    filter: str | None
    asked: bool
    """Whether the flow's patterns name it."""


@dataclass(frozen=True)
class Candidate:
    """A table that is or could be published."""

    schema: str
    name: str
    partitioned: bool
    key: tuple[str, ...]
    identity: str
    rows: int | None
    """The planner's estimate; None where the table was never analysed."""
    bytes: int
    published: bool
    asked: bool
    problem: str
    remedy: str


@dataclass(frozen=True)
class Change:
    """What a command has changed, and what it had no need to."""

    created: bool
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    unchanged: tuple[str, ...]
    notes: tuple[str, ...]


class Publishing:
    """Commands on one flow's publication; each refuses before it touches anything, or does all it was asked."""

    def __init__(self, flow: str, options: PostgresOptions) -> None:
        self._flow, self._options = flow, options
        self.name = options.publication or default_name(flow)
        self._control = Control(options.dsn, flow, iam=RdsIam.of(options))
        self._state = StateTable(self._control, flow, options)

    def close(self) -> None:
        """Gives back the connection."""
        self._control.close()

    def published(self) -> tuple[Publication, list[PublishedTable]]:
        """The publication and every table that it sends, as the stream names them."""
        found, tables = self._found(), catalog.tables(self._control)
        details = {row["oid"]: row for row in self._control.rows(_DETAILS, {"name": self.name})}
        asked = {t.oid for t in catalog.wanted(self._options, tables)}
        return found, [_published(t, found, details.get(t.oid, {}), t.oid in asked) for t in tables if t.oid in found.sends]

    def discover(self, patterns: Sequence[str] = ()) -> tuple[list[Candidate], list[str]]:
        """Every table that could be published and fits the patterns, and what is to be said about patterns that fit none."""
        tables = catalog.tables(self._control)
        asked = catalog.wanted(self._options, tables)
        chosen = [t for t in tables if t.is_root and not t.is_state]
        notes = [
            f"No table fits {pattern!r} in {option}{f': {reason}' if reason else ''}."
            for option, pattern, reason in catalog.unmatched(self._control, self._options, asked)
        ]
        if patterns:
            chosen = self._choose(patterns, chosen)
        found = publication.find(self._control, self.name, self._flow)
        sizes = {row["oid"]: row for row in self._control.rows(_SIZES, {"oids": [t.oid for t in chosen]})}
        plan = Plan(found, asked, [], [])
        wanted = {t.oid for t in asked}
        # A table that was dropped between the two looks has no size any more.
        return [_candidate(t, plan, sizes[t.oid], t.oid in wanted) for t in chosen if t.oid in sizes], notes

    def add(self, asked: Sequence[str], *, with_rows: bool = False) -> Change:
        """Adds tables, by name or pattern; one without replica identity is refused before the publication is touched.

        `with_rows` says that somebody loads the rows that are there; else a worker of the flow is told that nobody is to.
        """
        found, tables = self._found(), catalog.tables(self._control)
        roots = [t for t in tables if t.is_root]
        chosen = [t for t in self._choose(asked, roots) if not t.is_state]
        for word in asked:
            # A pattern may fit it beside others, and means only those.
            if not any(fits(word, t.schema, t.name) for t in chosen):
                own = next(t for t in roots if t.is_state and fits(word, t.schema, t.name))
                raise TablesMissing(f"{own.qualified} is penstock's own state table.", remedy="Name other tables.")
        plan = publication.compare(found, tables, chosen, adds=True, drops=False)
        silent = [t for t in plan.missing if t.silent and found.sends_updates]
        if silent:
            raise identities_missing(silent, plan)
        refuse([*self._preflight().publishing(plan)], plan)
        unrecorded = self._say_of_rows(plan.missing, with_rows)
        try:
            for statement in publication.changes(self.name, plan):
                self._control.execute(statement)
        except PenstockError:
            self._say_of_rows(plan.missing, True)
            raise
        for table in chosen:
            self._state.forget_attempt("left out", table.quoted.as_string(None))
        again = publication.plan(self._control, self._options, self.name, self._flow)
        notes = [f"{names(plan.missing)}: rows that are there now are not loaded; changes from now on are delivered."]
        if with_rows:
            notes = []
        elif unrecorded and self._options.snapshot == "initial":
            notes = [
                f"Nothing records that the rows of {names(unrecorded)} are not wanted: a worker loads them (snapshot: initial)."
            ]
        if back := _both(again.surplus, plan.missing):
            notes.append(f"The next start drops {names(back)} again: the flow's patterns do not name it.")
        return _change(plan, chosen, notes if plan.missing else [])

    def remove(self, asked: Sequence[str]) -> Change:
        """Takes tables out, by name or pattern, also those that have not joined yet; the tables themselves are not touched."""
        before = publication.plan(self._control, self._options, self.name, self._flow)
        found, tables = before.found, catalog.tables(self._control)
        chosen = self._choose(asked, tables)
        waiting = _both(chosen, before.missing)
        if found is None:
            if not waiting:
                raise self._absent()
            return Change(False, (), (), tuple(t.qualified for t in chosen), (self._keep_out(waiting),))
        listed = [t for t in chosen if t.oid in found.listed]
        whole = [t for t in chosen if t.oid not in found.listed and (found.everything or t.schema in found.schemas)]
        if by_whole := [t for t in whole if t.oid in found.sends]:
            raise self._sent_as_a_whole(found, by_whole)
        plan = Plan(found, [], [], [], listed)
        statements = publication.changes(self.name, plan)
        if statements and not found.owned:
            role = Identifier(self._control.user).as_string(None)
            what = f"may not be changed by {self._control.user}: it"
            raise not_owner(found, what, publication.text(*statements), role)
        # Said first: a worker that runs the flow stops when its publication is narrowed by somebody who has not said so.
        if listed and not self._leave_out(listed):
            self._refuse_running()
        try:
            for statement in statements:
                self._control.execute(statement)
        except PenstockError:
            for table in listed:
                self._state.forget_attempt("left out", table.quoted.as_string(None))
            raise
        self._say_of_rows(listed, True)
        again = publication.plan(self._control, self._options, self.name, self._flow)
        asked_for = {t.oid for t in (*again.missing, *again.left_out)}
        out = [t for t in (*listed, *waiting) if t.oid in asked_for]
        return _change(plan, chosen, [self._keep_out(out)] if out else [])

    def sync(self, mode: Mode | None, *, dry: bool = False) -> Change:
        """Brings the publication in line with the flow's patterns, and makes it if there is none; `dry` only says how."""
        asked = {"ensure_publication": True, "sync_publication": True}
        options = self._options.model_copy(update={**asked, "sync_publication_mode": mode or self._options.sync_publication_mode})
        plan = publication.plan(self._control, options, self.name, self._flow)
        preflight = self._preflight(options)
        refuse([*preflight.tables(plan), *preflight.publishing(plan)], plan)
        if not dry and plan.found is None:
            self._control.execute(publication.creation(self.name, self._flow, plan.missing))
            self._state.record("publication", self.name, "made")
        elif not dry:
            for statement in publication.changes(self.name, plan):
                self._control.execute(statement)
        left = f"{names(plan.left_out)} stays out, as asked by `penstock publication remove`; `add` puts it back."
        return _change(plan, plan.takes, [left] if plan.left_out else [])

    def _keep_out(self, tables: Sequence[Table]) -> str:
        """Records that the flow does without tables that its patterns name; what that means, for people."""
        if self._leave_out(tables):
            return f"The flow does without {names(tables)} until `penstock publication add` puts it back."
        return f"Nothing records this: the next start adds {names(tables)} again, because the flow's patterns name it."

    def _leave_out(self, tables: Sequence[Table]) -> bool:
        """Records that the flow does without the tables; whether it could be recorded."""
        for table in tables:
            self._state.record("left out", table.quoted.as_string(None), "made")
        return {t.oid for t in tables} <= self._state.left_out()

    def _say_of_rows(self, tables: Sequence[Table], with_rows: bool) -> list[Table]:
        """Records of tables whether a worker that finds them in the publication may load their rows; those it could not."""
        for table in tables:
            name = table.quoted.as_string(None)
            self._state.forget_attempt("without rows", name)
            if not with_rows:
                self._state.record("without rows", name, "made")
        known = self._state.without_rows() if tables and not with_rows else frozenset()
        return [t for t in tables if not with_rows and t.oid not in known]

    def _refuse_running(self) -> None:
        found = slot.find(self._control, self._options.slot or default_name(self._flow))
        if found is not None and found.active_pid is not None:
            raise slot_busy(found.name, found.active_pid, found.reader)

    def _found(self) -> Publication:
        found = publication.find(self._control, self.name, self._flow)
        if found is None:
            raise self._absent()
        return found

    def _absent(self) -> PublicationMissing:
        return PublicationMissing(
            f"The publication {self.name} does not exist.",
            remedy="`penstock publication sync --flow FILE` makes it, as the flow's first start would.",
            publication=self.name,
        )

    def _preflight(self, options: PostgresOptions | None = None) -> Preflight:
        options = options or self._options.model_copy(update={"ensure_publication": True})
        return Preflight(self._control, self._flow, options, options.slot or default_name(self._flow), self.name)

    def _choose(self, asked: Sequence[str], tables: Sequence[Table]) -> list[Table]:
        """The tables that are asked for; every name and pattern must fit one, else nothing is done for any."""
        missing = [word for word in asked if not any(fits(word, t.schema, t.name) for t in tables)]
        if missing:
            reasons = catalog.reasons(self._control, missing)
            said = [f"{word!r}{f' ({reasons[word]})' if reasons[word] else ''}" for word in missing]
            raise TablesMissing(
                f"No table fits {', '.join(said)}.",
                remedy="`penstock publication discover --flow FILE` lists the tables there are.",
            )
        return [t for t in tables if any(fits(word, t.schema, t.name) for word in asked)]

    def _sent_as_a_whole(self, found: Publication, tables: Sequence[Table]) -> SourceSettings:
        how = "is FOR ALL TABLES" if found.everything else f"sends the whole schema {', '.join(found.schemas)}"
        return SourceSettings(
            f"The publication {self.name} {how}, so that {names(tables)} cannot be taken out of it.",
            remedy="Leave the tables out with `exclude` on the destinations, or make a publication that names its tables.",
            publication=self.name,
        )


def _both(some: Sequence[Table], others: Sequence[Table]) -> list[Table]:
    oids = {t.oid for t in others}
    return [t for t in some if t.oid in oids]


def _published(table: Table, found: Publication, details: dict[str, Any], asked: bool) -> PublishedTable:
    by = "all" if found.everything else "named" if table.oid in found.listed else "schema" if table.oid in found.named else "root"
    columns = details.get("columns")
    return PublishedTable(table.schema, table.name, by, tuple(columns) if columns else None, details.get("filter"), asked)


def _candidate(table: Table, plan: Plan, size: dict[str, Any], asked: bool) -> Candidate:
    refusal = identities_missing([table], plan) if table.silent else None
    return Candidate(
        schema=table.schema,
        name=table.name,
        partitioned=size["partitioned"],
        key=table.key,
        identity=_IDENTITIES.get(table.identity, table.identity) if not table.silent else "none",
        rows=size["rows"],
        bytes=size["bytes"] or 0,
        published=plan.found is not None and table.oid in plan.found.sends,
        asked=asked,
        problem=refusal.message if refusal else "",
        remedy=refusal.remedy if refusal else "",
    )


def _change(plan: Plan, chosen: Sequence[Table], notes: Sequence[str]) -> Change:
    touched = {t.oid for t in (*plan.missing, *plan.surplus)}
    added, dropped = (tuple(t.qualified for t in tables) for tables in (plan.missing, plan.surplus))
    unchanged = tuple(t.qualified for t in chosen if t.oid not in touched)
    return Change(plan.found is None, added, dropped, unchanged, tuple(notes))
