"""The event triggers that tell schema changes: made, found, compared with what the flow needs, and taken away again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import structlog
from psycopg.sql import SQL, Composed, Identifier, Literal

from penstock.core.finding import Finding
from penstock.errors import PenstockError, SourceFailed, SourceRights, SourceSettings
from penstock.sources.base import Belonging
from penstock.sources.postgres import ddl_function, publication
from penstock.sources.postgres.catalog import STATE_MARK, flow_mark
from penstock.sources.postgres.control import Control, Row
from penstock.sources.postgres.options import PostgresOptions, trigger_name
from penstock.sources.postgres.state import StateTable

_log = structlog.get_logger()

ATTEMPTS = 3
FIRES = ("O", "A")
"""pg_event_trigger.evtenabled: fires in ordinary sessions, or always."""

_TRIGGERS = """
SELECT t.evtname AS name, t.evtevent AS event, t.evtenabled::text AS enabled, n.nspname AS schema, f.proname AS function,
       pg_catalog.obj_description(t.oid, 'pg_event_trigger') AS comment, pg_catalog.pg_get_userbyid(t.evtowner) AS owner,
       pg_catalog.pg_has_role(t.evtowner, 'USAGE') AS owned
  FROM pg_catalog.pg_event_trigger t
  JOIN pg_catalog.pg_proc f ON f.oid = t.evtfoid
  JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace
 WHERE t.evtname = ANY (%(names)s::text[]) OR pg_catalog.obj_description(t.oid, 'pg_event_trigger') = %(mark)s
 ORDER BY t.evtname
"""
_FUNCTIONS = """
SELECT n.nspname AS schema, f.proname AS name, f.prosrc AS source, pg_catalog.obj_description(f.oid, 'pg_proc') AS comment,
       pg_catalog.pg_get_userbyid(f.proowner) AS owner, pg_catalog.pg_has_role(f.proowner, 'USAGE') AS owned,
       coalesce((SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = f.proowner), false) AS of_superuser
  FROM pg_catalog.pg_proc f
  JOIN pg_catalog.pg_namespace n ON n.oid = f.pronamespace
 WHERE f.pronargs = 0 AND f.prorettype = 'pg_catalog.event_trigger'::pg_catalog.regtype
   AND (n.nspname = %(schema)s AND f.proname = %(name)s OR pg_catalog.obj_description(f.oid, 'pg_proc') = %(mark)s)
"""
_SERVER = """
SELECT r.rolsuper OR coalesce((SELECT pg_catalog.pg_has_role(m.oid, 'MEMBER') FROM pg_catalog.pg_roles m
                                WHERE m.rolname = 'rds_superuser'), false) AS makes,
       pg_catalog.pg_is_in_recovery() AS standby, n.oid IS NOT NULL AS schema_exists,
       coalesce(pg_catalog.obj_description(n.oid, 'pg_namespace') = %(mark)s
                AND pg_catalog.pg_has_role(n.nspowner, 'USAGE'), false) AS schema_made,
       n.oid IS NOT NULL AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_depend d WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
              AND d.refobjid = n.oid AND NOT (d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
                  AND coalesce(pg_catalog.obj_description(d.objid, 'pg_proc') = %(flow_mark)s, false))) AS schema_empty
  FROM pg_catalog.pg_roles r LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = %(schema)s
 WHERE r.rolname = current_user
"""


@dataclass(frozen=True)
class _Found:
    """What the server has of it now."""

    triggers: dict[str, Row]
    function: Row | None
    server: Row
    stale: list[tuple[str, str, Row]]
    """What the flow has made under names that it no longer uses: kind, name for people, and the row."""


class DdlTrigger:
    """One function and two event triggers of a flow; `install` may run any number of times."""

    def __init__(self, control: Control, flow: str, options: PostgresOptions, publication_name: str) -> None:
        self._control, self._flow, self._options = control, flow, options
        self._publication = publication_name
        self._state = StateTable(control, flow, options)
        self._schema, self.name = options.ddl_trigger_schema, options.ddl_trigger_name or trigger_name(flow)
        self._events = {self.name: "ddl_command_end", f"{self.name}_drop": "sql_drop"}
        self._mark = flow_mark(flow)

    def findings(self) -> Iterator[Finding]:
        """Whether schema changes are or can be told; changes nothing."""
        if not self._options.capture_ddl:
            return
        subject, found = f"event trigger {self.name}", self._look()
        problems = list(self._problems(found))
        yield from (Finding(subject, False, p.message, p.remedy, p.code) for p in problems)
        if problems:
            return
        if self._statements(found):
            made = found.function is not None and found.function["comment"] == self._mark
            yield Finding(subject, True, "will be brought up to date" if made else "will be created")
        elif found.function is not None and found.function["source"] != self._source:
            yield Finding(subject, True, self._outdated, publication.text(self._definition), SourceSettings.code)
        else:
            yield Finding(subject, True, "tells schema changes")

    def troubles(self) -> Iterator[Finding]:
        """What keeps schema changes from being told while the flow runs; changes nothing."""
        if not self._options.capture_ddl:
            return
        found = self._look()
        for problem in self._problems(found):
            yield Finding(f"event trigger {self.name}", False, problem.message, problem.remedy, problem.code)
        for name in (n for n in self._events if n not in found.triggers):
            detail = f"The event trigger {name} is gone, and schema changes are not told."
            yield Finding(f"event trigger {name}", False, detail, "The next start makes it again.", SourceSettings.code)

    def install(self, *, again: bool) -> None:
        """Makes what is missing, and drops what the flow has made and no longer uses; `again`: the flow has run before."""
        for attempt in range(ATTEMPTS):
            found = self._look()
            for kind, name, row in found.stale:
                self._drop_stale(kind, name, row)
            if not self._options.capture_ddl:
                return
            for problem in self._problems(found):
                raise problem
            statements = self._statements(found)
            try:
                if statements:
                    self._control.execute(SQL("; ").join(statements))
                break
            except SourceFailed:
                # Two starts at the same moment: whoever loses finds made what they wanted to make.
                if attempt == ATTEMPTS - 1:
                    raise
        missing = [name for name in self._events if name not in found.triggers]
        if missing and again:
            _log.warning("event trigger made; schema changes of the time without it are not told", trigger=", ".join(missing))
        if found.function is not None and not statements and found.function["source"] != self._source:
            _log.warning("event trigger is out of date", reason=self._outdated, remedy=publication.text(self._definition))
        self._record(found)

    def belongings(self) -> Iterator[Belonging]:
        """What there is of it, also under names that the flow had before."""
        found = self._look()
        rows = [("event trigger", name, row) for name, row in found.triggers.items()]
        if found.function is not None:
            rows.append(("function", self._qualified, found.function))
        for kind, name, row in sorted([*rows, *found.stale], key=lambda one: one[0] != "event trigger"):
            made = row["comment"] == self._mark
            blocked = None
            if made and not row["owned"]:
                statement = publication.text(_removal(kind, row))
                blocked = SourceRights(
                    f"The {kind} {name} may not be dropped by {self._control.user}: it belongs to {row['owner']}.",
                    remedy=f"{statement} as {row['owner']}",
                )
            yield Belonging(kind, name, made, "" if made else "made by others", blocked)

    def drop(self, kind: str, name: str) -> None:
        """Drops one of its belongings; its record goes with it."""
        found = self._look()
        rows: list[tuple[str, str, Row]] = [("event trigger", n, row) for n, row in found.triggers.items()]
        rows += [("function", self._qualified, found.function)] if found.function is not None else []
        for one, called, row in [*rows, *found.stale]:
            if (one, called) == (kind, name) and row["comment"] == self._mark:
                self._control.execute(_removal(kind, row))
        self._state.forget(kind, name)

    def leaves(self) -> list[tuple[str, str]]:
        """The function's schema, if penstock made it and nothing of others is in it."""
        server = self._server()
        return [("schema", self._schema)] if server["schema_made"] and server["schema_empty"] else []

    def drop_empty(self) -> list[tuple[str, str]]:
        """Removes the schema, if it is empty and penstock's own; returns what was removed."""
        if going := self.leaves():
            self._control.execute(SQL("DROP SCHEMA {}").format(Identifier(self._schema)))
        return going

    @property
    def _qualified(self) -> str:
        return f"{self._schema}.{self.name}"

    @property
    def _source(self) -> str:
        return ddl_function.body(self._flow, self._options, self._publication, self._control.version)

    @property
    def _definition(self) -> Composed:
        return ddl_function.definition(self._schema, self.name, self._source)

    @property
    def _outdated(self) -> str:
        return f"The function {self._qualified} was made by others and is not what this flow would make now."

    def _server(self) -> Row:
        return self._control.row(_SERVER, {"schema": self._schema, "mark": STATE_MARK, "flow_mark": self._mark})

    def _look(self) -> _Found:
        triggers = self._control.rows(_TRIGGERS, {"names": list(self._events), "mark": self._mark})
        functions = self._control.rows(_FUNCTIONS, {"schema": self._schema, "name": self.name, "mark": self._mark})
        named, wanted = (self._schema, self.name), self._options.capture_ddl
        made = [row for row in triggers if row["comment"] == self._mark]
        kept = [row for row in made if wanted and row["name"] in self._events and (row["schema"], row["function"]) == named]
        stale = [("event trigger", row["name"], row) for row in made if row not in kept]
        functions_stale = [f for f in functions if f["comment"] == self._mark and not (wanted and _place(f) == named)]
        stale += [("function", ".".join(_place(row)), row) for row in functions_stale]
        return _Found(
            {row["name"]: row for row in triggers if wanted and (row in kept or row not in made)},
            next((row for row in functions if wanted and _place(row) == named), None),
            self._server(),
            stale,
        )

    def _problems(self, found: _Found) -> Iterator[PenstockError]:
        for name, row in found.triggers.items():
            yield from self._trigger_problems(name, row)
        function = found.function
        if (
            function is not None
            and (function["comment"] or "").startswith("penstock flow ")
            and function["comment"] != self._mark
        ):
            yield self._taken(f"function {self._qualified}", str(function["comment"]))
        elif function is not None and self._statements(found) and not self._is_trusted(function, found):
            yield SourceRights(
                f"The function {self._qualified} belongs to {function['owner']}, who could change what everybody's sessions run.",
                remedy=f"See who made it; {publication.text(_removal('function', function))} the next start makes it anew."
                " Or set another `ddl_trigger_schema`.",
            )
        if len(found.triggers) == len(self._events) and function is not None:
            return
        if found.server["standby"]:
            yield SourceSettings(
                f"The event trigger {self.name} does not exist, and on a standby it cannot be made.",
                remedy=f"{self._for_others(found)} on the primary of this standby.",
            )
        elif not found.server["makes"]:
            yield SourceRights(
                f"The role {self._control.user} may not create the event trigger {self.name} that `capture_ddl` needs.",
                remedy=f"As a superuser: {self._for_others(found)} Or set `capture_ddl: false`.",
            )

    def _is_trusted(self, function: Row, found: _Found) -> bool:
        """Whether no other than a superuser, our role, or who has made the triggers, can change the function."""
        owners = {row["owner"] for row in found.triggers.values()}
        return bool(function["of_superuser"]) or function["owner"] in {self._control.user, *owners}

    def _trigger_problems(self, name: str, row: Row) -> Iterator[PenstockError]:
        comment = row["comment"] or ""
        if comment.startswith("penstock flow ") and comment != self._mark:
            yield self._taken(f"event trigger {name}", comment)
        elif (row["schema"], row["function"]) != (self._schema, self.name) or row["event"] != self._events[name]:
            yield SourceSettings(
                f"The event trigger {name} is there and is not what the flow needs: it runs {row['schema']}.{row['function']}"
                f" on {row['event']}.",
                remedy="Set another `ddl_trigger_name` in the source's options.",
            )
        elif row["enabled"] not in FIRES:
            yield SourceSettings(
                f"The event trigger {name} is disabled, so that schema changes are not told.",
                remedy=f"{publication.text(SQL('ALTER EVENT TRIGGER {} ENABLE').format(Identifier(name)))}"
                " Or set `capture_ddl: false`.",
            )

    def _taken(self, what: str, comment: str) -> SourceSettings:
        return SourceSettings(
            f"The {what} belongs to another flow ({comment.removeprefix('penstock flow ')}).",
            remedy="Set another `ddl_trigger_name` in the source's options.",
        )

    def _statements(self, found: _Found) -> list[Composed]:
        """What has to be run for all to be there, each object marked as the flow's own."""
        function, mark = found.function, Literal(self._mark)
        statements: list[Composed] = []
        if not found.server["schema_exists"]:
            statements.append(SQL("CREATE SCHEMA {}").format(Identifier(self._schema)))
            statements.append(SQL("COMMENT ON SCHEMA {} IS {}").format(Identifier(self._schema), Literal(STATE_MARK)))
        made = function is not None and function["comment"] == self._mark and function["owned"]
        if function is None or (made and function["source"] != self._source):
            statements.append(self._definition)
            statements.append(SQL("COMMENT ON FUNCTION {}() IS {}").format(Identifier(self._schema, self.name), mark))
        for name in (n for n in self._events if n not in found.triggers):
            statements.append(self._creation(name))
            statements.append(SQL("COMMENT ON EVENT TRIGGER {} IS {}").format(Identifier(name), mark))
        return statements

    def _for_others(self, found: _Found) -> str:
        """The same for a DBA, whose own it stays."""
        # The schema for the flow's role, which keeps its state table there; what runs in other people's sessions for the DBA.
        schema = SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}")
        statements = [schema.format(Identifier(self._schema), Identifier(self._control.user)), self._definition]
        statements += [self._creation(name) for name in self._events if name not in found.triggers]
        return publication.text(*statements)

    def _creation(self, name: str) -> Composed:
        event = self._events[name]
        tags = SQL(", ").join(map(Literal, ddl_function.TAGS))
        when = SQL(" WHEN TAG IN ({})").format(tags) if event == "ddl_command_end" else SQL("").format()
        function = Identifier(self._schema, self.name)
        return SQL("CREATE EVENT TRIGGER {} ON {}{} EXECUTE FUNCTION {}()").format(Identifier(name), SQL(event), when, function)

    def _record(self, found: _Found) -> None:
        for name in self._events:
            there = found.triggers.get(name)
            self._state.record("event trigger", name, "made" if there is None or there["comment"] == self._mark else "found")
        there = found.function
        self._state.record("function", self._qualified, "made" if there is None or there["comment"] == self._mark else "found")

    def _drop_stale(self, kind: str, name: str, row: Row) -> None:
        try:
            self._control.execute(_removal(kind, row))
            self._state.forget(kind, name)
        except PenstockError as error:
            statement = publication.text(_removal(kind, row))
            _log.warning(f"{kind} that the flow no longer uses stays", name=name, reason=error.message, remedy=statement)


def _place(function: Row) -> tuple[str, str]:
    return function["schema"], function["name"]


def _removal(kind: str, row: Row) -> Composed:
    if kind == "event trigger":
        return SQL("DROP EVENT TRIGGER {}").format(Identifier(row["name"]))
    return SQL("DROP FUNCTION {}()").format(Identifier(row["schema"], row["name"]))
