"""The state table: what each flow owns on the server, kept on the server itself for audit and clean-up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from typing import Literal as Choice

import structlog
from psycopg.sql import SQL, Composed, Identifier, Literal

from penstock.errors import PenstockError, SourceFailed, SourceRights
from penstock.sources.postgres.catalog import STATE_MARK, flow_mark
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions

_log = structlog.get_logger()

ATTEMPTS = 4
_QUOTED = r'^"([^"]|"")+"\."([^"]|"")+"$'
COLUMNS = frozenset({"flow", "kind", "name", "origin", "since", "options"})

Kind = Choice["publication", "slot", "left out", "without rows", "event trigger", "function"]
"""`left out`: a table that an operator has taken out of the publication, and that the flow is not to add again. `without rows`:
one that an operator has added to it, and whose rows of before are not to be loaded."""
Origin = Choice["making", "made", "found"]

_LOOK = """
SELECT n.oid IS NOT NULL AS schema_exists, c.oid IS NOT NULL AS table_exists, pg_catalog.pg_is_in_recovery() AS standby,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE') AS makes_schema,
       coalesce(pg_catalog.has_schema_privilege(n.oid, 'CREATE'), false) AS makes_table,
       coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false) AS enters,
       coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
            AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') AND pg_catalog.has_table_privilege(c.oid, 'DELETE'), false)
            AS writes,
       coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT'), false) AS reads,
       pg_catalog.obj_description(c.oid, 'pg_class') AS table_comment,
       coalesce(pg_catalog.pg_has_role(c.relowner, 'USAGE'), false) AS table_owned,
       pg_catalog.obj_description(n.oid, 'pg_namespace') AS schema_comment,
       coalesce(pg_catalog.pg_has_role(n.nspowner, 'USAGE'), false) AS schema_owned,
       (SELECT pg_catalog.array_agg(a.attname::text) FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns
  FROM (SELECT) one
  LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = %(schema)s
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = %(table)s
"""


@dataclass(frozen=True)
class Owned:
    """A row of the table: an object that belongs to the flow, and whether the flow has made it or found it there."""

    kind: str
    name: str
    origin: str
    home: str = ""
    """Where the state of the flow lies that has it; empty when that is not known."""

    def is_foreign(self, home: str) -> bool:
        """Whether it belongs to a flow of the same name whose state lies elsewhere."""
        return bool(home and self.home and self.home != home)

    @property
    def made(self) -> bool:
        """Whether the flow has made it; `making` is left behind by a crash after the server has made it and before we said so."""
        return self.origin in ("made", "making")


class StateTable:
    """The rows of one flow; keeping them never keeps a flow from running."""

    def __init__(self, control: Control, flow: str, options: PostgresOptions) -> None:
        self._control, self._flow = control, flow
        self._schema, self._table = options.state_schema, options.state_table
        self._place = Identifier(options.state_schema, options.state_table)
        self._wanted = options.ensure_state
        self._silenced = False

    @property
    def qualified(self) -> str:
        """`schema.table`, for people."""
        return f"{self._schema}.{self._table}"

    def trouble(self) -> PenstockError | None:
        """What keeps the table from being kept, with the SQL that mends it; changes nothing."""
        look = self._look()
        role = Identifier(self._control.user).as_string(None)
        if look["standby"]:
            return SourceFailed(
                f"The server is a standby: {self.qualified} cannot be written here.",
                remedy="Nothing is lost but the record; `ensure_state: false` ends this notice.",
            )
        if look["table_exists"] and not COLUMNS.issubset(look["columns"] or ()):
            return SourceFailed(
                f"{self.qualified} is there and is not penstock's.", remedy="Set another `state_table` in the source's options."
            )
        if look["table_exists"]:
            if look["writes"] and look["enters"]:
                return None
            right = f"GRANT USAGE ON SCHEMA {self._quoted_schema} TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON "
            return self._lacks(f"may not write {self.qualified}", f"{right}{self._quoted} TO {role};")
        if look["schema_exists"]:
            if look["makes_table"] and look["enters"]:
                return None
            right = f"GRANT USAGE, CREATE ON SCHEMA {self._quoted_schema} TO {role};"
            return self._lacks(f"may not make a table in schema {self._schema}", right)
        if look["makes_schema"]:
            return None
        right = f"CREATE SCHEMA {self._quoted_schema} AUTHORIZATION {role};"
        return self._lacks(f"may not make the schema {self._schema}", right)

    def record(self, kind: Kind, name: str, origin: Origin, options: Mapping[str, Any] | None = None) -> None:
        """Has the row say so, making the table first; what the flow has made stays made when it is found again.

        Never raises what the server says about the table: a flow runs without it, and the log says so once.
        """
        if not self._wanted or self._silenced:
            return
        try:
            self._keep(kind, name, origin, options)
        except PenstockError as error:
            self._silenced = True
            _log.warning("state table not kept", flow=self._flow, table=self.qualified, reason=error.message, remedy=error.remedy)

    def forget_attempt(self, kind: Kind, name: str) -> None:
        """Removes the row of something that could not be made after all; whatever is in the way, the failure matters more."""
        with suppress(PenstockError):
            self.forget(kind, name)

    def forget(self, kind: str, name: str) -> None:
        """Removes the row, if there is one."""
        if any((o.kind, o.name) == (kind, name) for o in self.rows()):
            self._control.execute(
                SQL("DELETE FROM {} WHERE flow = {} AND kind = {} AND name = {}").format(
                    self._place, Literal(self._flow), Literal(kind), Literal(name)
                )
            )

    def rows(self) -> list[Owned]:
        """What the table says about the flow; nothing when there is no table or it may not be read."""
        if not self._readable():
            return []
        query = SQL("SELECT kind, name, origin, options ->> 'home' AS home FROM {} WHERE flow = {} ORDER BY kind, name")
        found = self._control.rows(query.format(self._place, Literal(self._flow)))
        return [Owned(row["kind"], row["name"], row["origin"], row["home"] or "") for row in found]

    def claim(self, kind: Kind, name: str, home: str) -> None:
        """Has the row say whose the object is; a flow runs without it, as with `record`."""
        row = next((o for o in self.rows() if (o.kind, o.name) == (kind, name)), None)
        if not home or not self._wanted or self._silenced or row is None or row.home == home:
            return
        statement = SQL("UPDATE {} SET options = options || {}::jsonb WHERE flow = {} AND kind = {} AND name = {}")
        with suppress(PenstockError):
            self._control.execute(
                statement.format(self._place, *map(Literal, (json.dumps({"home": home}), self._flow, kind, name)))
            )

    def left_out(self) -> frozenset[int]:
        """Oids of tables that an operator has taken out of the flow's publication."""
        return self._tables("left out")

    def without_rows(self) -> frozenset[int]:
        """Oids of tables that an operator has added to it without their rows."""
        return self._tables("without rows")

    def _tables(self, kind: Kind) -> frozenset[int]:
        if not self._readable():
            return frozenset()
        # CASE: to_regclass raises for what is no name at all, and a row that somebody wrote by hand stops no flow.
        query = SQL(
            "SELECT CASE WHEN name ~ {} THEN pg_catalog.to_regclass(name)::pg_catalog.oid::bigint END AS oid"
            " FROM {} WHERE flow = {} AND kind = {}"
        ).format(Literal(_QUOTED), self._place, Literal(self._flow), Literal(kind))
        return frozenset(row["oid"] for row in self._control.rows(query) if row["oid"])

    def leaves(self) -> list[tuple[str, str]]:
        """What `drop_empty` would remove: the table and its schema, each only if penstock made it and nothing is left in it."""
        look = self._look()
        if not look["table_exists"] or look["table_comment"] != STATE_MARK or not look["table_owned"] or not look["reads"]:
            return []
        others = SQL("SELECT 1 FROM {} WHERE flow <> {} LIMIT 1")
        if self._control.rows(others.format(self._place, Literal(self._flow))):
            return []
        found = [("state table", self.qualified)]
        if look["schema_comment"] == STATE_MARK and look["schema_owned"] and not self._shares_schema():
            found.append(("schema", self._schema))
        return found

    def drop_empty(self) -> list[tuple[str, str]]:
        """Removes the table, and its schema, if they are empty and penstock's own; returns what was removed."""
        if self.rows() or not (going := self.leaves()):
            return []
        self._control.execute(SQL("DROP TABLE {}").format(self._place))
        if len(going) > 1:
            self._control.execute(SQL("DROP SCHEMA {}").format(Identifier(self._schema)))
        return going

    @property
    def _quoted_schema(self) -> str:
        return Identifier(self._schema).as_string(None)

    @property
    def _quoted(self) -> str:
        return self._place.as_string(None)

    def _look(self) -> dict[str, Any]:
        return self._control.row(_LOOK, {"schema": self._schema, "table": self._table})

    def _readable(self) -> bool:
        look = self._look()
        return bool(look["reads"] and look["enters"] and COLUMNS.issubset(look["columns"] or ()))

    def _lacks(self, what: str, remedy: str) -> SourceRights:
        return SourceRights(
            f"The role {self._control.user} {what}, so that what the flow makes is not recorded.",
            remedy=f"{remedy} or set `ensure_state: false`",
        )

    def _keep(self, kind: Kind, name: str, origin: Origin, options: Mapping[str, Any] | None) -> None:
        if trouble := self.trouble():
            raise trouble
        self._ensure()
        before = next((o.origin for o in self.rows() if (o.kind, o.name) == (kind, name)), None)
        if origin == "found" and before is not None:
            origin = "made" if before in ("made", "making") else "found"
        if origin == before:
            return
        text = json.dumps(dict(options or {}), ensure_ascii=False)
        known = SQL(", options = excluded.options") if options is not None else SQL("")
        self._control.execute(
            SQL(
                "INSERT INTO {} (flow, kind, name, origin, options) VALUES ({}, {}, {}, {}, {}::jsonb)"
                " ON CONFLICT (flow, kind, name) DO UPDATE SET origin = excluded.origin, since = pg_catalog.now(){}"
            ).format(self._place, *map(Literal, (self._flow, kind, name, origin, text)), known)
        )

    def _ensure(self) -> None:
        # Flows that start at the same moment meet here: whoever loses finds made what they wanted to make.
        for attempt in range(ATTEMPTS):
            look = self._look()
            if look["table_exists"]:
                return
            try:
                self._make(with_schema=not look["schema_exists"])
            except SourceFailed:
                if attempt == ATTEMPTS - 1:
                    raise

    def _make(self, *, with_schema: bool) -> None:
        if with_schema:
            statement = SQL("CREATE SCHEMA {0}; COMMENT ON SCHEMA {0} IS {1}")
            self._control.execute(statement.format(Identifier(self._schema), Literal(STATE_MARK)))
        self._control.execute(definition(self._schema, self._table))

    def _shares_schema(self) -> bool:
        """Whether anything but the state table, its index and its row type, and what goes with the flow, lives in the schema."""
        query = SQL(
            "SELECT 1 FROM pg_catalog.pg_depend d WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass"
            " AND d.refobjid = {schema}::pg_catalog.regnamespace AND NOT (d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass"
            " AND d.objid = {table}::pg_catalog.regclass) AND NOT (d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass"
            " AND coalesce(pg_catalog.obj_description(d.objid, 'pg_proc') = {mark}, false)) LIMIT 1"
        )
        place = {"schema": Literal(self._quoted_schema), "table": Literal(self._quoted)}
        found = self._control.rows(query.format(**place, mark=Literal(flow_mark(self._flow))))
        return bool(found)


def definition(schema: str, table: str) -> Composed:
    """The statements that make the table."""
    return SQL(
        "CREATE TABLE {0} (flow text NOT NULL, kind text NOT NULL, name text NOT NULL,"
        " origin text NOT NULL CHECK (origin IN ('making', 'made', 'found')),"
        " since timestamptz NOT NULL DEFAULT pg_catalog.now(), options jsonb NOT NULL DEFAULT '{{}}',"
        " PRIMARY KEY (flow, kind, name)); COMMENT ON TABLE {0} IS {1}"
    ).format(Identifier(schema, table), Literal(STATE_MARK))
