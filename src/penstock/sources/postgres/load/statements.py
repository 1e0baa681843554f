"""The statements that read chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from psycopg.sql import SQL, Composable, Identifier, Literal

from penstock.core.schema import TableSchema
from penstock.sources.chunks import Chunk
from penstock.sources.postgres.toast.keys import array_literal


def probe(table: TableSchema, name: str, only: bool) -> str:
    """A query that has the table's columns and no rows; it takes the lock under which the table stays what it is."""
    return f"{_select(table, '')} FROM {_origin(name, only)} LIMIT 0"


def copy(chunk: Chunk, table: TableSchema, name: str, *, binary: bool = False) -> str:
    """The COPY of a chunk; a list of keys has the number of the key before the table's columns."""
    bounds = chunk.bounds
    target = "TO STDOUT (FORMAT binary)" if binary else "TO STDOUT"
    origin = _origin(name, bool(bounds["only"]))
    if "keys" in bounds:
        return f"COPY ({_by_keys(bounds, table, origin)}) {target}"
    where = _where([str(bounds.get("condition") or ""), str(bounds.get("filter") or "")])
    return f"COPY ({_select(table, '')} FROM {origin}{where}) {target}"


def joined(conditions: Sequence[str]) -> str:
    """All of the conditions as one; a line break keeps a comment at the end of one from hiding what follows."""
    return " AND ".join(f"({c}\n)" for c in conditions if c)


def _by_keys(bounds: Mapping[str, Any], table: TableSchema, origin: str) -> str:
    names = [f"k{i}" for i in range(len(bounds["key"]))]
    arrays = [SQL("{}::text[]").format(Literal(array_literal(pa.array(texts, pa.string())))) for texts in bounds["keys"]]
    same: list[Composable] = []
    for (column, kind, schema, operator), name in zip(bounds["key"], names, strict=True):
        same.append(
            SQL("t.{} OPERATOR({}.{}) k.{}::{}").format(
                Identifier(column), Identifier(schema), SQL(operator), Identifier(name), SQL(kind)
            )
        )
    # The rows are filtered in a query of their own, where the keys' names cannot be meant by mistake.
    rows = f"(SELECT * FROM {origin}{_where([str(bounds.get('filter') or '')])})"
    keys = f"unnest({SQL(', ').join(arrays).as_string(None)}) WITH ORDINALITY AS k ({', '.join(names)}, n)"
    return f"{_select(table, 't', 'k.n')} FROM {keys} JOIN {rows} AS t ON {SQL(' AND ').join(same).as_string(None)}"


def _select(table: TableSchema, alias: str, *first: str) -> str:
    names = [Identifier(*filter(None, (alias, column.name))).as_string(None) for column in table.columns]
    return f"SELECT {', '.join([*first, *names])}"


def _origin(name: str, only: bool) -> str:
    return f"ONLY {name}" if only else name


def _where(conditions: Sequence[str]) -> str:
    found = joined(conditions)
    return f" WHERE {found}" if found else ""
