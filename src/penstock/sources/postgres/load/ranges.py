"""Ranges: the bounds between which the keys of a table are cut, from a sample of its pages or by stepping through its index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.sql import SQL, Composed, Identifier, Literal

from penstock.errors import PenstockError
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.load.places import Index, Place

_PAGE: Final = 8192
_SAMPLED_PAGES: Final = 400
_PER_RANGE: Final = 20
"""Rows that a sample needs for each range, so that ranges come out about equal."""

_LEAST_STEP: Final = 1000

Bound = tuple[str, ...]


def bounds(control: Control, place: Place, index: Index, count: int) -> list[Bound]:
    """Up to `count` - 1 keys, ascending and distinct as the server compares them, that cut the relation into like parts."""
    columns = used(index)
    if count < 2 or not columns:
        return []
    found = _sampled(control, place, columns, count)
    if found is None:
        found = _stepped(control, place, index, columns, count)
    return found


def used(index: Index) -> tuple[str, ...]:
    """The columns of the index that ranges go by: all, or the first where several cannot be compared in one go."""
    if not index.usual:
        return ()
    return index.columns if index.is_plain else index.columns[:1]


def conditions(index: Index, cuts: Sequence[Bound]) -> list[str]:
    """A condition for each range between the cuts; together they hold every key once."""
    found = []
    for low, high in zip([None, *cuts], [*cuts, None], strict=True):
        parts = []
        if low is not None:
            parts.append(_compared(index, index.least, low))
        if high is not None:
            parts.append(_compared(index, index.below, high))
        found.append(" AND ".join(parts))
    return found


def _compared(index: Index, operators: Sequence[str], bound: Bound) -> str:
    columns = used(index)
    left = SQL(", ").join(Identifier(c) for c in columns)
    right = SQL(", ").join(
        SQL("{}::{}").format(Literal(text), SQL(kind)) for text, kind in zip(bound, index.types[: len(columns)], strict=True)
    )
    operator = SQL("OPERATOR({}.{})").format(Identifier(index.schemas[0]), SQL(operators[0]))
    form = SQL("({}) {} ({})") if len(columns) == 1 else SQL("ROW({}) {} ROW({})")
    return form.format(left, operator, right).as_string(None)


def _sampled(control: Control, place: Place, columns: Sequence[str], count: int) -> list[Bound] | None:
    """The keys at like distances in a sample of whole pages; None when it is too small to say anything."""
    pages = max(1, place.main // _PAGE)
    percent = min(100.0, 100.0 * max(_SAMPLED_PAGES, 2 * count) / pages)
    names = [Identifier(c) for c in columns]
    query = SQL(
        "SELECT {texts}, s.c FROM (SELECT {names}, row_number() OVER (ORDER BY {names}) AS r, count(*) OVER () AS c"
        " FROM {origin} TABLESAMPLE SYSTEM ({percent}) REPEATABLE (1)) s"
        " WHERE s.c >= {enough} AND s.r * {count} / s.c <> (s.r - 1) * {count} / s.c AND s.r < s.c ORDER BY s.r"
    ).format(
        texts=_texts(columns),
        names=SQL(", ").join(names),
        origin=_origin(place),
        percent=Literal(percent),
        enough=Literal(count * _PER_RANGE),
        count=Literal(count),
    )
    try:
        rows = control.rows(query)
    except PenstockError:
        # Not every way to store a table can be sampled.
        return None
    return distinct([tuple(row[f"b{i}"] for i in range(len(columns))) for row in rows]) if rows else None


def _stepped(control: Control, place: Place, index: Index, columns: Sequence[str], count: int) -> list[Bound]:
    """Every so many keys, in the index's order; at most twice as many as asked for, whatever the estimate was worth."""
    step = max(1, place.rows // count)
    names = SQL(", ").join(Identifier(c) for c in columns)
    found: list[Bound] = []
    while len(found) < 2 * count:
        after = SQL(" WHERE {}").format(SQL(_compared(index, index.least, found[-1]))) if found else SQL("")
        query = SQL("SELECT {texts} FROM (SELECT {names} FROM {origin}{after} ORDER BY {names} OFFSET {step} LIMIT 1) s").format(
            texts=_texts(columns), names=names, origin=_origin(place), after=after, step=Literal(step)
        )
        rows = control.rows(query)
        if not rows and not found and step > _LEAST_STEP:
            # Far fewer rows than estimated: a table that was never analysed, and is mostly empty pages.
            step //= 8
            continue
        if not rows:
            break
        bound = tuple(rows[0][f"b{i}"] for i in range(len(columns)))
        if found and bound == found[-1]:
            # One value of the first column fills a whole step: there is nothing to cut within it.
            step *= 2
            continue
        found.append(bound)
    return found


def _texts(columns: Sequence[str]) -> Composed:
    return SQL(", ").join(
        SQL("s.{}::pg_catalog.text AS {}").format(Identifier(c), Identifier(f"b{i}")) for i, c in enumerate(columns)
    )


def _origin(place: Place) -> Composed:
    return SQL("{}{}").format(SQL("ONLY " if place.only else ""), SQL(place.quoted))


def distinct(found: Sequence[Bound]) -> list[Bound]:
    """Bounds without repetitions, which the first column of several may have."""
    return [b for i, b in enumerate(found) if i == 0 or b != found[i - 1]]
