"""The function behind the event triggers: what it tells about a schema change, as text that a DBA can run too.

It runs inside other people's commands. Everything it does stands in one exception block, it calls nothing outside of
pg_catalog, and it evaluates nothing that users have written; expressions of theirs are only printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from psycopg.sql import SQL, Composed, Identifier, Literal

from penstock.sources.postgres.catalog import STATE_MARK
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.publication import SCHEMAS_SINCE

MOST_STATEMENT = 65536
"""Characters of a statement that are told: what a client sends at once may hold rows beside the command."""
TAGS = ("CREATE TABLE", "CREATE TABLE AS", "SELECT INTO", "ALTER TABLE", "CREATE SCHEMA")

# What users may have set changes how types and expressions are printed.
_SETTINGS = (
    "search_path = pg_catalog, pg_temp",
    "quote_all_identifiers = off",
    "datestyle = 'ISO, MDY'",
    "intervalstyle = 'postgres'",
    "timezone = 'UTC'",
    "extra_float_digits = 1",
    "bytea_output = 'hex'",
)

FACTS = """
(SELECT json_build_object('oid', t.oid::bigint, 'schema', tn.nspname, 'name', t.relname,
    'kind', CASE t.relkind WHEN 'p' THEN 'partitioned table' ELSE 'table' END,
    'partition_of', CASE WHEN t.relispartition THEN (SELECT format('%I.%I', rn.nspname, r.relname) FROM pg_class r
        JOIN pg_namespace rn ON rn.oid = r.relnamespace WHERE r.oid = pg_partition_root(t.oid)) END,
    'replica_identity', CASE t.relreplident WHEN 'd' THEN 'default' WHEN 'i' THEN 'index' WHEN 'f' THEN 'full'
        ELSE 'nothing' END,
    'columns', coalesce((SELECT json_agg(json_build_object('position', a.attnum, 'name', a.attname,
            'type', format_type(a.atttypid, a.atttypmod), 'nullable', NOT a.attnotnull,
            'default', CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END,
            'generated', CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END,
            'identity', CASE a.attidentity WHEN 'a' THEN 'always' WHEN 'd' THEN 'by default' END) ORDER BY a.attnum)
        FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]'::json),
    'key', coalesce((SELECT json_agg(a.attname ORDER BY k.place) FROM pg_index x
        CROSS JOIN LATERAL unnest(x.indkey) WITH ORDINALITY k (number, place)
        JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.number
        WHERE x.indrelid = t.oid AND x.indisprimary AND k.place <= x.indnkeyatts), '[]'::json))
  FROM pg_class t JOIN pg_namespace tn ON tn.oid = t.relnamespace WHERE t.oid = %s)
"""

# Tables that the flow takes, or that could join it: by the names its patterns choose, or by its publication.
_CHOSEN = """
({schema} || '.' || {name} = ANY (_names) OR {schema} || '.' || {name} ~ ANY (_full) OR {name} ~ ANY (_bare)
    OR {schema} ~ ANY (_schemas)
    OR EXISTS (SELECT FROM pg_publication p WHERE p.pubname = _publication AND p.puballtables){by_schema})
"""
_BY_SCHEMA = """
 OR EXISTS (SELECT FROM pg_publication p JOIN pg_publication_namespace s ON s.pnpubid = p.oid
    JOIN pg_namespace pn ON pn.oid = s.pnnspid WHERE p.pubname = _publication AND pn.nspname = {schema})
"""
# A partition counts as its root; members of extensions only where a pattern or the publication names them.
_TAKEN = """
(c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    AND (n.nspname, c.relname) <> (_state_schema, _state_table)
    AND obj_description(c.oid, 'pg_class') IS DISTINCT FROM _state_mark
    AND (EXISTS (SELECT FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = _publication
            AND (r.prrelid = c.oid OR r.prrelid IN (SELECT pg_partition_ancestors(c.oid))))
        OR {chosen} AND NOT (_everything AND EXISTS (SELECT FROM pg_depend e
            WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid AND e.deptype = 'e'))))
"""

# An identity that the server has made before is quoted as the user's session has it, so that it is made here.
_BODY = """
#variable_conflict use_column
DECLARE
    _flow CONSTANT text := {flow};
    _publication CONSTANT text := {publication};
    _names CONSTANT text[] := {names};
    _full CONSTANT text[] := {full};
    _bare CONSTANT text[] := {bare};
    _schemas CONSTANT text[] := {schemas};
    _everything CONSTANT boolean := {everything};
    _state_schema CONSTANT text := {state_schema};
    _state_table CONSTANT text := {state_table};
    _state_mark CONSTANT text := {state_mark};
    _head text;
    _one record;
BEGIN
    IF TG_EVENT = 'sql_drop' THEN
        FOR _one IN
            SELECT json_build_object('type', d.object_type, 'identity', (SELECT string_agg(quote_ident(part), '.' ORDER BY place)
                        FROM unnest(d.address_names) WITH ORDINALITY i (part, place)), 'schema', d.schema_name,
                    'name', coalesce(d.object_name, d.address_names[2]), 'oid', d.objid::bigint,
                    'column', CASE WHEN d.objsubid > 0 THEN d.address_names[3] END) AS object,
                CASE WHEN d.objsubid > 0 THEN {dropped_facts} END AS after
            FROM pg_event_trigger_dropped_objects() d
            LEFT JOIN pg_class c ON d.objsubid > 0 AND c.oid = d.objid
            LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE d.classid = 'pg_class'::regclass AND NOT d.is_temporary
                AND current_query() !~* '^\\s*(create|alter)\\s+extension\\M'
                AND (d.object_type = 'table column' AND NOT c.relispartition AND {taken}
                    OR d.object_type = 'table' AND d.schema_name !~ '^pg_'
                    AND (d.schema_name, d.object_name) <> (_state_schema, _state_table)
                    AND TG_TAG <> 'DROP EXTENSION'
                    AND ({dropped_chosen} OR (d.schema_name, d.object_name) IN (SELECT r.address_names[1], r.address_names[2]
                        FROM pg_event_trigger_dropped_objects() r
                        WHERE r.object_type = 'publication relation' AND r.address_args = ARRAY[_publication])))
            ORDER BY d.objid, d.objsubid
        LOOP
            {emit}
        END LOOP;
        {after}
    ELSE
        FOR _one IN
            SELECT json_build_object('type', e.object_type, 'identity', e.object_identity, 'schema', e.schema,
                'name', e.name, 'oid', e.oid::bigint) AS object, {facts} AS after
            FROM (SELECT DISTINCT ON (c.oid) c.oid, o.object_type, o.object_identity, n.nspname AS schema, c.relname AS name,
                    o.place
                FROM pg_event_trigger_ddl_commands() WITH ORDINALITY o (classid, objid, objsubid, command_tag, object_type,
                    schema_name, object_identity, in_extension, command, place)
                JOIN pg_class c ON o.classid = 'pg_class'::regclass AND c.oid = o.objid
                JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE NOT o.in_extension AND {taken}
                ORDER BY c.oid, o.place) e
            ORDER BY e.place
        LOOP
            {emit}
        END LOOP;
        {after}
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock flow %: a schema change could not be told: %', _flow, SQLERRM;
END
"""
_EMIT = """
_head := '{"flow": ' || to_json(_flow)::text || ', ';
PERFORM pg_logical_emit_message(true, {prefix}, convert_to(_head || substr(json_build_object('version', 1, 'event', TG_EVENT,
    'tag', TG_TAG, 'user', session_user, 'statement', left(current_query(), {most}),
    'statement_cut', length(current_query()) > {most}, 'object', _one.object, 'after', _one.after)::text, 2), 'UTF8'));
"""

# The exception block is a subtransaction. Among those the server orders a message by where its record ends, which is where the
# next record begins: without one in between, the user's next change could come first.
_AFTER = "IF FOUND THEN PERFORM pg_logical_emit_message(true, 'penstock.end', ''); END IF;"


def head(flow: str) -> str:
    """With what every message of the flow's own triggers begins."""
    return f'{{"flow": "{flow}", '


def body(flow: str, options: PostgresOptions, publication: str, version: int) -> str:
    """The function's source, on one line, so that it can be shown, copied and compared."""
    by_schema = _BY_SCHEMA if version >= SCHEMAS_SINCE else ""
    taken = _TAKEN.replace("{chosen}", _fill(_CHOSEN, by_schema=by_schema)).replace("{schema}", "n.nspname")
    dropped = _fill(_CHOSEN, by_schema=by_schema).replace("{schema}", "d.schema_name").replace("{name}", "d.object_name")
    # Values come last: nothing that a user has written is looked into, or loses a space.
    text = _fill(
        _BODY,
        emit=_fill(_EMIT, most=str(MOST_STATEMENT)),
        after=_AFTER,
        dropped_facts=FACTS.replace("%s", "d.objid"),
        facts=FACTS.replace("%s", "e.oid"),
        taken=taken.replace("{name}", "c.relname"),
        dropped_chosen=dropped,
    )
    text = " ".join(text.split())
    names, full, bare, schemas = _choices(options)
    return _fill(
        text,
        prefix=_text(options.ddl_message_prefix),
        flow=_text(flow),
        publication=_text(publication),
        names=_array(names),
        full=_array(full),
        bare=_array(bare),
        schemas=_array(schemas),
        everything=str(_may_add(options) and not (options.publication_tables or options.publication_schemas)).lower(),
        state_schema=_text(options.state_schema),
        state_table=_text(options.state_table),
        state_mark=_text(STATE_MARK),
    )


def definition(schema: str, name: str, source: str) -> Composed:
    """The statement that makes the function, or gives it its present source."""
    return SQL("CREATE OR REPLACE FUNCTION {}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER {} AS {}").format(
        Identifier(schema, name), SQL(" ".join(f"SET {setting}" for setting in _SETTINGS)), Literal(source)
    )


def regex(pattern: str) -> str:
    """A pattern of the options as a regular expression of the server's; an odd set of characters fits any character."""
    found, rest = "", pattern
    while rest:
        sign, rest = rest[0], rest[1:]
        if sign == "*":
            found += ".*"
        elif sign == "?":
            found += "."
        elif sign == "[" and (group := re.match(r"(!?\]?[^\]]*)\]", rest)):
            rest = rest[group.end() :]
            plain = re.fullmatch(r"(!?)([A-Za-z0-9_]+)", group[1])
            found += f"[{'^' if plain[1] else ''}{plain[2]}]" if plain else "."
        else:
            found += f"\\{sign}" if sign.isascii() and not sign.isalnum() and sign != "_" else sign
    return f"^({found})$"


def _choices(options: PostgresOptions) -> tuple[Iterable[str], Iterable[str], Iterable[str], Iterable[str]]:
    """Names, and expressions for whole names, table names and schemas, of what may be added to the publication."""
    if not _may_add(options):
        return (), (), (), ()
    tables, schemas = options.publication_tables, options.publication_schemas
    if not tables and not schemas:
        return (), (), (), ("^.*$",)
    return tables, map(regex, tables), (regex(p) for p in tables if "." not in p), map(regex, schemas)


def _may_add(options: PostgresOptions) -> bool:
    return options.ensure_publication or options.sync_publication


def _fill(text: str, **values: str) -> str:
    return re.sub(rf"\{{({'|'.join(values)})\}}", lambda found: values[found[1]], text)


def _text(value: str) -> str:
    return Literal(value).as_string(None).strip()


def _array(values: Iterable[str] | Sequence[str]) -> str:
    return f"ARRAY[{', '.join(map(_text, values))}]::text[]"
