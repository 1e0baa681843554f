"""Tables at the target: created from the source's schema, changed when it changes, never two sources in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.schema import Column, TableSchema
from penstock.destinations.base import Place
from penstock.destinations.folding.keys import require_key
from penstock.destinations.postgres.bookkeeping import HOME, TABLES, is_ours
from penstock.destinations.postgres.options import PostgresOptions
from penstock.destinations.postgres.session import Connection, execute
from penstock.destinations.postgres.types import Known, keeps, look_up, target_type
from penstock.destinations.sql import listed, quoted
from penstock.errors import SchemaRefused

NAME_BYTES = 63
"""What a server keeps of an identifier; it cuts longer ones without a word."""
# Makers of tables one after the other: CREATE … IF NOT EXISTS of two sessions at once fails in one of them.
_LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('penstock tables', 0))"

_COLUMNS = """
SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), pg_catalog.format_type(a.atttypid, -1), a.attgenerated <> ''
  FROM pg_catalog.pg_attribute a
  JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
"""
_UNIQUE = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_index i
      JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = $1 AND c.relname = $2 AND i.indisunique AND i.indisvalid AND i.indimmediate
       AND i.indpred IS NULL AND i.indexprs IS NULL
       AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text)
              FROM pg_catalog.unnest(i.indkey) WITH ORDINALITY k (number, place)
              JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
             WHERE k.place <= i.indnkeyatts) = $3::text[])
"""


@dataclass
class Shape:
    """A table as it stands at the target: its quoted name, and its columns with their types, modifiers left out."""

    target: str
    types: Mapping[str, str]
    pours: bool = True
    """Whether new rows can be copied straight into it; false once it had one of them already."""


@dataclass(frozen=True)
class Present:
    """A column that is there: its type with modifiers and without."""

    type: str
    plain: str
    generated: bool


class Tables:
    """The tables of one flow's destination."""

    def __init__(self, place: Place, options: PostgresOptions) -> None:
        self._owner, self.options = (place.flow, place.destination), options
        self._shapes: dict[tuple[str, str], Shape] = {}

    def prepare(self, connection: Connection, table: TableSchema) -> None:
        """Makes a table ready, in the caller's transaction."""
        require_key(table)
        schema, name = self.options.target(table)
        self.refuse_long(table, schema, name)
        if (schema, name) == (table.schema, table.name):
            self._refuse_itself(connection, table)
        execute(connection, _LOCK)
        self._claim(connection, table, schema, name)
        self._shape(connection, table, schema, name)
        self.forget_shape((schema, name))

    def shape(self, connection: Connection, place: tuple[str, str]) -> Shape:
        """A table at the target, as it stands there."""
        if place not in self._shapes:
            types = {column: present.plain for column, present in columns_of(connection, *place).items()}
            self._shapes[place] = Shape(f"{quoted(place[0])}.{quoted(place[1])}", types)
        return self._shapes[place]

    def forget_shape(self, place: tuple[str, str]) -> None:
        """The table has been changed."""
        self._shapes.pop(place, None)

    def forget(self) -> None:
        """What is known may no longer be so: another connection, or an error."""
        self._shapes.clear()

    def refuse_long(self, table: TableSchema, schema: str, name: str) -> None:
        """SchemaRefused for a name that the server would cut."""
        for text in (schema, name, *(c.name for c in table.columns)):
            if len(text.encode()) > NAME_BYTES:
                raise SchemaRefused(
                    f"{table.qualified}: the name {text!r} is longer than the {NAME_BYTES} bytes that PostgreSQL keeps of one",
                    remedy="Give the destination a shorter schema_template or table_template (staging_schema or staging_table),"
                    " or exclude the table.",
                    table=table.qualified,
                )

    def _refuse_itself(self, connection: Connection, table: TableSchema) -> None:
        """A table that is its own copy would be changed by every change of it, without end."""
        found = execute(
            connection,
            "SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = $1 AND database = pg_catalog.current_database()",
            [f"penstock_{self._owner[0]}"],
        ).fetchone()
        if found is not None:
            raise SchemaRefused(
                f"{table.qualified} would be written over itself: this database is the flow's source",
                remedy='Give the destination a schema_template such as "copy_{schema}", or another database in its dsn.',
                table=table.qualified,
            )

    def _claim(self, connection: Connection, table: TableSchema, schema: str, name: str) -> None:
        """Remembers which source table stands at the target; two in one are refused."""
        if is_ours(schema, name):
            raise SchemaRefused(
                f"{table.qualified} would overwrite {schema}.{name}, which holds the positions",
                remedy="Exclude the table, or give the destination a schema_template or table_template.",
                table=table.qualified,
            )
        others = execute(
            connection,
            f"SELECT flow, destination, source_schema, source_table FROM {HOME}.{TABLES}"
            " WHERE target_schema = $1 AND target_table = $2",
            [schema, name],
        ).fetchall()
        for flow, destination, *source in others:
            if (flow, destination) == self._owner and source != [table.schema, table.name]:
                raise SchemaRefused(
                    f"{table.qualified} and {'.'.join(source)} would both be {schema}.{name}",
                    remedy="Exclude one of them, or send them to tables of their own with schema_template or table_template.",
                    table=table.qualified,
                )
        execute(
            connection,
            f"INSERT INTO {HOME}.{TABLES} AS t (flow, destination, source_schema, source_table, target_schema, target_table,"
            " version) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (flow, destination, source_schema, source_table)"
            " DO UPDATE SET version = EXCLUDED.version, target_schema = EXCLUDED.target_schema,"
            " target_table = EXCLUDED.target_table",
            [*self._owner, table.schema, table.name, schema, name, table.version],
        )

    def _shape(self, connection: Connection, table: TableSchema, schema: str, name: str) -> None:
        """Creates the table, or gives it the columns and types it lacks; columns that the source dropped stay."""
        target = f"{quoted(schema)}.{quoted(name)}"
        known = look_up(connection, table.columns)
        present = columns_of(connection, schema, name)
        if not present:
            columns = ", ".join(f"{quoted(c.name)} {target_type(c, known)}" for c in table.columns)
            make_schema(connection, schema)
            execute(connection, f"CREATE TABLE {target} ({columns}, PRIMARY KEY ({listed(table.key)}))")
            return
        changes = [self._difference(table, target, column, present.get(column.name), known) for column in table.columns]
        if any(changes):
            execute(connection, f"ALTER TABLE {target} {', '.join(filter(None, changes))}")
        self._require_unique(connection, table, schema, name)

    def _difference(
        self, table: TableSchema, target: str, column: Column, there: Present | None, known: Mapping[str, Known]
    ) -> str:
        """What is to be done to a column; nothing when it holds what the source's does."""
        wanted, name = target_type(column, known), quoted(column.name)
        if there is None:
            return f"ADD COLUMN {name} {wanted}"
        if there.generated:
            raise SchemaRefused(
                f"{table.qualified}: column {column.name} is generated at the destination and cannot be written",
                remedy=f"ALTER TABLE {target} ALTER COLUMN {name} DROP EXPRESSION;",
                table=table.qualified,
                column=column.name,
            )
        if keeps(there.type, wanted):
            return ""
        if keeps(wanted, there.type):
            return f"ALTER COLUMN {name} TYPE {wanted} USING {name}::{wanted}"
        raise SchemaRefused(
            f"{table.qualified}: column {column.name} is {there.type} at the destination and {wanted} at the source",
            remedy=f"ALTER TABLE {target} ALTER COLUMN {name} TYPE {wanted} USING …; there, then start the flow again.",
            table=table.qualified,
            column=column.name,
        )

    def _require_unique(self, connection: Connection, table: TableSchema, schema: str, name: str) -> None:
        """Rows are merged by the key, which needs an index that knows it to be unique."""
        if not is_unique(connection, (schema, name), table.key):
            raise SchemaRefused(
                f"{table.qualified}: {schema}.{name} has no primary key or unique index on ({', '.join(table.key)}),"
                " by which changes are merged",
                remedy=f"ALTER TABLE {quoted(schema)}.{quoted(name)} ADD PRIMARY KEY ({listed(table.key)}); at the destination"
                " (drop another primary key first), then start the flow again.",
                table=table.qualified,
            )


def columns_of(connection: Connection, schema: str, name: str) -> dict[str, Present]:
    """The columns of a table that is there, in their order; none when it is not."""
    rows: Sequence[tuple[str, str, str, bool]] = execute(connection, _COLUMNS, [schema, name]).fetchall()
    return {column: Present(kind, plain, generated) for column, kind, plain, generated in rows}


def is_unique(connection: Connection, place: tuple[str, str], key: Sequence[str]) -> bool:
    """Whether the table has an index by which its key is known to be unique."""
    found = execute(connection, _UNIQUE, [*place, sorted(key)]).fetchone()
    return found is not None and bool(found[0])


def make_schema(connection: Connection, schema: str) -> None:
    """Creates the schema if it is missing."""
    # Not CREATE … IF NOT EXISTS, which asks for the right to create one that is there.
    found = execute(connection, "SELECT pg_catalog.to_regnamespace($1) IS NOT NULL", [quoted(schema)]).fetchone()
    if found is None or not found[0]:
        execute(connection, f"CREATE SCHEMA {quoted(schema)}")
