"""Loads through staging tables: the states that one goes through, and what the target remembers of it.

The rows of a load wait in a staging table beside the target, which the stream goes on to change. While a staging table is open,
what the stream changes is changed in it too, in the same transaction: so it is at any time the table as the source has it, as far
as the load has come, and when the load has ended it is the whole table. That is why resolving it needs no memory of what happened
meanwhile: a newer change is in it, and a row that was deleted is not.

    idle ──begin──▶ loading ──end──▶ loaded ──resolve──▶ idle       batch_resolution append or replace
                       └─────end──▶ left ──begin──▶ loading        batch_resolution none; emptied when the next load begins

`loading` and `loaded` are open. A load has a name, so that a load which has ended here does not begin again after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from penstock.core.schema import TableSchema
from penstock.destinations.base import Place, Resolution, TableOptions
from penstock.errors import SchemaRefused, StagingRefused

Source = tuple[str, str]
"""Schema and table at the source."""
State = Literal["idle", "loading", "loaded", "left"]

COLUMNS = (
    "flow text, destination text, source_schema text, source_table text, staging_schema text, staging_table text,"
    " shape text, state text, load text, changed_at timestamptz"
)
"""Columns of the table that remembers staging tables; `shape` is JSON: the source's columns, and its key."""
_OWN = "flow = $1 AND destination = $2"


@dataclass(frozen=True)
class StagingTable:
    """What is remembered of one."""

    source: Source
    place: tuple[str, str]
    columns: tuple[str, ...]
    key: tuple[str, ...]
    state: State = "idle"
    load: str = ""

    @property
    def is_open(self) -> bool:
        """Whether rows of its load go into it, and changes of the stream with them."""
        return self.state in ("loading", "loaded")

    @property
    def shape(self) -> str:
        """Its columns and key as they are remembered."""
        return json.dumps({"columns": self.columns, "key": self.key})


class Store(Protocol):
    """The target's database, as far as it matters here; `$1` and so on stand for values."""

    book: str
    """The name of the table that remembers."""

    def run(self, sql: str, values: Sequence[Any]) -> int:
        """Runs a statement; how many rows it has written."""

    def rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """What a query gives."""

    def same(self, place: tuple[str, str], other: tuple[str, str]) -> bool:
        """Whether two names are one table for the database."""

    def empty(self, place: tuple[str, str]) -> None:
        """Removes every row."""

    def append(self, staging: StagingTable, target: tuple[str, str]) -> tuple[int, int]:
        """Adds rows that the target lacks; how many were added, and removed."""

    def replace(self, staging: StagingTable, target: tuple[str, str]) -> tuple[int, int]:
        """Makes the target what the staging table is; how many rows were written, and removed."""


class StagingBook:
    """The staging tables of one flow's destination; every call is part of the caller's transaction."""

    def __init__(self, place: Place, options: TableOptions) -> None:
        self._owner, self._options = [place.flow, place.destination], options
        self._known: dict[Source, StagingTable] | None = None

    def forget(self) -> None:
        """What is known may no longer be so: another connection, or a transaction that was undone."""
        self._known = None

    def known(self, store: Store) -> dict[Source, StagingTable]:
        """Every staging table, by source; read once."""
        if self._known is None:
            found = store.rows(
                "SELECT source_schema, source_table, staging_schema, staging_table, shape, state, load"
                f" FROM {store.book} WHERE {_OWN} ORDER BY source_schema, source_table",
                self._owner,
            )
            self._known = {(row[0], row[1]): _staging(row) for row in found}
        return self._known

    def open(self, store: Store, source: Source) -> StagingTable | None:
        """The table's staging table while it is open."""
        found = self.known(store).get(source)
        return found if found is not None and found.is_open else None

    def wanted(self, store: Store, table: TableSchema) -> StagingTable | None:
        """The staging table that the table is to have now; None when it needs none."""
        source = (table.schema, table.name)
        found = self.known(store).get(source)
        is_open = found is not None and found.is_open
        if not is_open and self._options.batch_mode != "staging":
            return None
        # One that is open stays where it is, whatever the options say now.
        place = found.place if found is not None and is_open else self._options.staging_place(*source)
        self._refuse_taken(store, table, place)
        columns = tuple(column.name for column in table.columns)
        state, load = (found.state, found.load) if found is not None else ("idle", "")
        return StagingTable(source, place, columns, table.key, state, load)

    def refuse_target(self, store: Store, table: TableSchema, target: tuple[str, str]) -> None:
        """SchemaRefused when the table would be written into another's staging table."""
        found = store.rows(
            f"SELECT staging_schema, staging_table, source_schema, source_table FROM {store.book}"
            " WHERE lower(staging_table) = lower($1)",
            [target[1]],
        )
        for schema, name, *source in found:
            if store.same((schema, name), target):
                self._refuse(table, target, f"which is the staging table of {'.'.join(source)}")

    def keep(self, store: Store, staging: StagingTable) -> None:
        """Remembers a staging table as it is from now on."""
        values = [*self._owner, *staging.source]
        gone = f"DELETE FROM {store.book} WHERE {_OWN} AND source_schema = $3 AND source_table = $4"
        if self.known(store).get(staging.source) == staging:
            return
        store.run(gone, values)
        store.run(
            f"INSERT INTO {store.book} VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, now())",
            [*values, *staging.place, staging.shape, staging.state, staging.load],
        )
        self.known(store)[staging.source] = staging

    def begin(self, store: Store, load: str, tables: Iterable[Source]) -> None:
        """The load fills these tables from now on; nothing for those that it has filled already."""
        for source in tables:
            found = self.known(store).get(source)
            if found is None or found.load == load or (self._options.batch_mode != "staging" and not found.is_open):
                continue
            if not found.is_open:
                store.empty(found.place)
            # An open one keeps its rows: they are as new as the stream, and nobody has merged them yet.
            self.keep(store, replace(found, state="loading", load=load))

    def end(self, store: Store, load: str, tables: Iterable[Source]) -> list[Source]:
        """The load is complete for these tables; those whose staging tables are to be resolved now."""
        due = []
        for source in tables:
            found = self.known(store).get(source)
            if found is None or found.load != load or not found.is_open:
                continue
            state: State = "left" if self._options.batch_resolution == "none" else "loaded"
            self.keep(store, replace(found, state=state))
            due.append(source)
        return due

    def chosen(self, store: Store, takes: Callable[[str, str], bool]) -> list[Source]:
        """The tables with something staged; StagingRefused when one of them cannot be resolved by the options."""
        found = [staging for staging in self.known(store).values() if takes(*staging.source) and staging.state != "idle"]
        if any(s.state == "loaded" for s in found) and self._options.batch_resolution == "none":
            raise StagingRefused(
                "batch_resolution is none: staging tables are left to you",
                remedy="Set `batch_resolution: append` or `replace` on the destination.",
            )
        return [staging.source for staging in found]

    def resolve(self, store: Store, source: Source) -> Resolution:
        """Merges a staging table whose load has ended, and empties it."""
        staging = self.known(store)[source]
        if staging.state != "loaded":
            return Resolution(*source, "loading" if staging.state == "loading" else "left")
        target = self._options.place_of(*source)
        if self._options.batch_resolution == "append":
            written, removed = store.append(staging, target)
        else:
            written, removed = store.replace(staging, target)
        store.empty(staging.place)
        self.keep(store, replace(staging, state="idle"))
        outcome: Literal["appended", "replaced"] = "appended" if self._options.batch_resolution == "append" else "replaced"
        return Resolution(*source, outcome, written, removed)

    def _refuse_taken(self, store: Store, table: TableSchema, place: tuple[str, str]) -> None:
        if store.same(place, self._options.place_of(table.schema, table.name)):
            self._refuse(table, place, "which is the table itself")
        found = store.rows(
            f"SELECT staging_schema, staging_table, flow, destination, source_schema, source_table FROM {store.book}"
            " WHERE lower(staging_table) = lower($1)",
            [place[1]],
        )
        for schema, name, *owner in found:
            if store.same((schema, name), place) and owner != [*self._owner, table.schema, table.name]:
                self._refuse(table, place, f"which is the staging table of {owner[2]}.{owner[3]}, flow {owner[0]}")

    def _refuse(self, table: TableSchema, place: tuple[str, str], why: str) -> None:
        raise SchemaRefused(
            f"{table.qualified} would be staged or written in {'.'.join(place)}, {why}",
            remedy='Give staging tables names of their own with staging_schema or staging_table, such as "{table}__load".',
            table=table.qualified,
        )


def _staging(row: Sequence[Any]) -> StagingTable:
    shape = json.loads(row[4])
    return StagingTable((row[0], row[1]), (row[2], row[3]), tuple(shape["columns"]), tuple(shape["key"]), row[5], row[6])
