"""Types at the target: the source's own where the target has it, else what it stands for, else text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from penstock.core.schema import Column
from penstock.destinations.postgres.session import Connection, execute

# What a name means at the target; a domain is followed to the type that its values have. Errors in a name are caught by the
# pattern: before PostgreSQL 16 to_regtype raised them.
_LOOK = """
SELECT asked.name, pg_catalog.format_type(b.oid, -1), t.typtype::text
  FROM pg_catalog.unnest($1::pg_catalog.text[]) AS asked (name)
  JOIN pg_catalog.pg_type t ON t.oid = pg_catalog.to_regtype(asked.name)
  JOIN LATERAL (
       WITH RECURSIVE below AS (
            SELECT t.oid, t.typtype, t.typbasetype, 0 AS depth
             UNION ALL
            SELECT u.oid, u.typtype, u.typbasetype, d.depth + 1
              FROM below d JOIN pg_catalog.pg_type u ON u.oid = d.typbasetype WHERE d.typtype = 'd')
       SELECT below.oid FROM below ORDER BY below.depth DESC LIMIT 1) b ON true
 WHERE t.typtype <> 'p'
"""
_NAME: Final = re.compile(
    r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)(?:[ .](?:"(?:[^"]|"")+"|[^\W\d][\w$]*))*(?:\(-?\d+(?:,-?\d+)?\))?[\w ]*(?:\[\])*'
)

# By the Arrow type of a column: target types that hold exactly its values, the first the one for sources of another kind.
_HOMES: Final[dict[pa.DataType, tuple[str, ...]]] = {
    pa.bool_(): ("boolean",),
    pa.int8(): ("smallint",),
    pa.int16(): ("smallint",),
    pa.int32(): ("integer",),
    pa.int64(): ("bigint",),
    pa.uint8(): ("smallint",),
    pa.uint16(): ("integer",),
    pa.uint32(): ("bigint", "oid", "xid", "cid"),
    pa.uint64(): ("numeric(20,0)", "xid8"),
    pa.float32(): ("real",),
    pa.float64(): ("double precision",),
    pa.binary(): ("bytea",),
    pa.large_binary(): ("bytea",),
    pa.date32(): ("date",),
    pa.time64("us"): ("time without time zone",),
    pa.timestamp("us"): ("timestamp without time zone",),
}
_WHOLE: Final = ("smallint", "integer", "bigint")
_DIGITS: Final = {"smallint": 5, "integer": 10, "bigint": 19}
_NUMERIC: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_LENGTH: Final = re.compile(r"character varying\((\d+)\)")
# Their values are names of the source's objects, which mean nothing at the target or something else.
_NAMES_OF_OBJECTS: Final = re.compile(r"(reg[a-z]+|aclitem)(\[\])*")


@dataclass(frozen=True)
class Known:
    """A type name that the target knows."""

    base: str
    """The type of its values, without modifiers: of a domain the type below, else itself."""


def look_up(connection: Connection, columns: Iterable[Column]) -> dict[str, Known]:
    """Which of the columns' native types, and types below them, the target has."""
    names = {name for c in columns for name in (c.native, c.base) if name and _NAME.fullmatch(name)}
    names = {name for name in names if not re.fullmatch(r"oid \d+", name)}
    rows = execute(connection, _LOOK, [sorted(names)]).fetchall() if names else []
    return {name: Known(base) for name, base, _ in rows}


def target_type(column: Column, known: Mapping[str, Known]) -> str:
    """The type that a column is created with.

    The source's own type if the target has one of that name whose values are of the column's kind; else the type below it,
    when it is a domain; else the one that holds the column's values as they are.
    """
    homes = _homes(column.type)
    for name in (column.native, column.base):
        found = known.get(name)
        if found is None or _NAMES_OF_OBJECTS.fullmatch(found.base):
            continue
        if homes is None or any(home.partition("(")[0] == found.base for home in homes):
            return name
    return "text" if homes is None else homes[0]


def _homes(kind: pa.DataType) -> tuple[str, ...] | None:
    """The types that hold the values of an Arrow type; None for texts, which any type may be written as."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return None
    if pa.types.is_decimal(kind):
        return (f"numeric({kind.precision},{kind.scale})", "money")
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return ("timestamp with time zone",)
    return _HOMES.get(kind) or (("text",))


def keeps(present: str, wanted: str) -> bool:
    """Whether a column of type `present` holds every value of type `wanted` as it is."""
    if present == wanted or present in ("text", "character varying"):
        return True
    if present in _WHOLE and wanted in _WHOLE:
        return _WHOLE.index(present) >= _WHOLE.index(wanted)
    if (present, wanted) == ("double precision", "real"):
        return True
    length, shorter = _LENGTH.fullmatch(present), _LENGTH.fullmatch(wanted)
    if length and shorter:
        return int(length[1]) >= int(shorter[1])
    return _holds_number(present, wanted)


def _holds_number(present: str, wanted: str) -> bool:
    if present == "numeric":
        return wanted in _WHOLE or wanted.startswith("numeric(")
    new, old = _NUMERIC.fullmatch(present), _NUMERIC.fullmatch(wanted)
    if new is None:
        return False
    whole, scale = int(new[1]) - int(new[2]), int(new[2])
    if wanted in _DIGITS:
        return whole >= _DIGITS[wanted] and scale >= 0
    return old is not None and whole >= int(old[1]) - int(old[2]) and scale >= int(old[2])


TIGHT: Final[frozenset[Any]] = frozenset(
    {"text", "character varying", "bpchar", "name", "uuid", "oid", "xid8", "boolean", "smallint", "integer", "bigint", "bytea",
     "date", "time without time zone", "timestamp without time zone", "timestamp with time zone", "money",
     "real", "double precision"}
)  # fmt: skip
"""Types whose equal values have equal texts, as far as the fold tells them apart."""
