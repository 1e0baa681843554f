"""The type book: what the server's catalogue says of a type, so that stream and catalogue describe a column alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core.schema import Column
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.types import FIRST_CUSTOM, arrow_type, native_name

Type = tuple[int, int]
"""Oid and typmod."""

# A domain over a domain ends at the innermost one's base type and modifier, as in the server's own getBaseTypeAndTypmod.
_TYPES = """
SELECT a.oid::bigint AS oid, a.typmod, pg_catalog.format_type(a.oid, a.typmod) AS name,
       b.oid::bigint AS base, b.typmod AS base_typmod, pg_catalog.format_type(b.oid, b.typmod) AS base_name
  FROM ROWS FROM (
       pg_catalog.unnest(%(oids)s::pg_catalog.oid[]), pg_catalog.unnest(%(typmods)s::pg_catalog.int4[])) a (oid, typmod)
  JOIN LATERAL (
       WITH RECURSIVE below AS (
            SELECT t.oid, a.typmod, t.typtype, t.typbasetype, t.typtypmod, 0 AS depth
              FROM pg_catalog.pg_type t WHERE t.oid = a.oid
             UNION ALL
            SELECT t.oid, d.typtypmod, t.typtype, t.typbasetype, t.typtypmod, d.depth + 1
              FROM below d JOIN pg_catalog.pg_type t ON t.oid = d.typbasetype WHERE d.typtype = 'd')
       SELECT below.oid, below.typmod FROM below ORDER BY below.depth DESC LIMIT 1) b ON true
"""


@dataclass(frozen=True)
class Resolved:
    """A type by its name, and the type that its values have."""

    native: str
    oid: int
    typmod: int
    base: str = ""
    """The name of the type below a domain."""

    def column(self, name: str) -> Column:
        """A column of that type."""
        return Column(name, arrow_type(self.oid, self.typmod), self.native, self.base)


class TypeBook:
    """Asks the server for types it has not met; with `ask` false it knows the built-in ones only, and all others are text."""

    def __init__(self, control: Control, ask: bool) -> None:
        self._control = control
        self._ask = ask
        self._built_in: dict[Type, Resolved] = {}

    def resolve(self, types: Iterable[Type]) -> dict[Type, Resolved]:
        """Every one of the types; one that the catalogue has lost since is text under its number."""
        wanted = set(types)
        if not self._ask:
            return {t: Resolved(native_name(*t), *t) for t in wanted}
        known = {t: self._built_in[t] for t in wanted if t in self._built_in}
        missing = sorted(wanted - known.keys())
        if missing:
            oids, typmods = zip(*missing, strict=True)
            for row in self._control.rows(_TYPES, {"oids": list(oids), "typmods": list(typmods)}):
                base = row["base_name"] if row["base"] != row["oid"] else ""
                known[row["oid"], row["typmod"]] = Resolved(row["name"], row["base"], row["base_typmod"], base)
        # A custom type can be renamed, so it is asked for again with every table version.
        self._built_in.update({t: found for t, found in known.items() if t[0] < FIRST_CUSTOM})
        return {t: known.get(t) or Resolved(native_name(*t), *t) for t in wanted}
