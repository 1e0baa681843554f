"""Rows that the log did not carry whole, while a table is being loaded through a staging table: each side lends what it has.

A partial row is completed from its origin, the row of the key that it had before. The target may not have it yet, because it has
only been staged; the staging table may not, because the load has not come to it. A row that one side lacks and the other has is
the source's: whatever changed it since would have changed it on both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.folding.moves import Departing, Room
from penstock.destinations.sql import equal, listed, quoted

_PARTIAL = ("patches", "moved", "departures")


class Lending(Room, Protocol):
    """A room that rows can be added to."""

    overriding: str
    """What stands between the columns and the rows of an INSERT that gives every value itself."""


def share_origins(target: Lending, staging: Lending, chunks: Iterable[Departing]) -> None:
    """Gives target and staging table the origins, of rows that chunks complete, that only the other one has."""
    for chunk in chunks:
        for name in _PARTIAL:
            part = chunk.part(name)
            if part is None:
                continue
            local = part.filter(pc.is_null(part.column("from_position")))
            if local.num_rows:
                _lend(target, staging.target, local, chunk)
                _lend(staging, target.target, local, chunk)


def _lend(to: Lending, lender: str, patch: pa.Table, chunk: Departing) -> None:
    names = listed(chunk.columns)
    lent = [f"penstock_lent.{quoted(k)}" for k in chunk.key]
    wanted = equal(lent, [f"penstock_patch.o{i}" for i in range(len(chunk.key))])
    there = equal(lent, [f"penstock_there.{quoted(k)}" for k in chunk.key])
    to.run(
        f"INSERT INTO {to.target} ({names}) {to.overriding} SELECT {names} FROM {lender} AS penstock_lent"
        f" WHERE EXISTS (SELECT 1 FROM penstock_patch WHERE {wanted})"
        f" AND NOT EXISTS (SELECT 1 FROM {to.target} AS penstock_there WHERE {there})",
        patch,
        chunk,
    )
