"""Folded chunks on their way from the lanes to the driver: staged as Arrow tables, described as plain data in the receipt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import TableSchema
from penstock.destinations.base import Receipt
from penstock.destinations.folding.fold import Folded, Names, Patches
from penstock.destinations.staging import Staged, StagedReader

Chunk = dict[str, Any]
"""Where the parts of a folded chunk are, as plain data."""
Travel = Callable[[pa.Table, TableSchema], pa.Table]
"""Gives rows of a table, or some of its columns, the types that the destination takes."""


_MANY_BYTES: Final = 256 << 10


def stage(staged: Staged, folded: Folded, travel: Travel, *, apart: bool = False) -> Chunk:
    """Stages what a chunk asks for, and says where it is.

    Its parts, each missing when it is empty: `upserts`, whole rows; `inserts`, with `apart`, those of them that the log says
    are new, when they are many; `deletes`, keys; `patches`, rows of which cells are to be left as they are; `moved`, rows of
    which cells come from another key's row; `departures`, rows that left the bucket.
    """
    table = folded.table
    chunk: Chunk = {
        "schema": table.schema,
        "table": table.name,
        "version": table.version,
        "columns": [column.name for column in table.columns],
        "key": list(table.key),
        "truncated": folded.truncated,
        "last": list(folded.last),
        "foreign": folded.patches is not None and folded.patches.foreign > 0,
        "loaded": folded.loaded,
    }
    upserts = folded.upserts
    if apart and upserts.nbytes > _MANY_BYTES and (inserts := upserts.filter(folded.fresh)).nbytes > _MANY_BYTES:
        chunk["inserts"] = staged.add(travel(inserts, table))
        upserts = upserts.filter(pc.invert(folded.fresh))
    if upserts.num_rows:
        chunk["upserts"] = staged.add(travel(upserts, table))
    if folded.deletes.num_rows:
        chunk["deletes"] = staged.add(travel(folded.deletes, table))
    stays = None
    if folded.patches is not None:
        patches = _patch_table(folded.patches, table, None, travel)
        stays = _stays(patches, table)
        for name, rows in (("patches", patches.filter(stays)), ("moved", patches.filter(pc.invert(stays)))):
            if rows.num_rows:
                chunk[name] = staged.add(rows)
    if folded.departures is not None:
        chunk["departures"] = staged.add(_patch_table(folded.departures.patches, table, folded.departures.at, travel))
    if folded.names is not None:
        chunk["names"] = _names(folded.names, folded.fresh if "inserts" in chunk else None, stays)
    return chunk


class StagedChunk:
    """A chunk of a receipt, with its tables."""

    def __init__(self, data: Mapping[str, Any], reader: StagedReader) -> None:
        self._data, self._reader = data, reader
        self.columns: list[str] = list(data["columns"])
        self.key: list[str] = list(data["key"])
        self.last: tuple[int, int] = (data["last"][0], data["last"][1])
        self.foreign = bool(data["foreign"])
        self.truncated = bool(data["truncated"])
        self.loaded = bool(data["loaded"])
        """Whether its rows are a load's; the stream's otherwise."""

    def part(self, name: str) -> pa.Table | None:
        """One of its tables; None when it has no such rows."""
        place = self._data.get(name)
        return None if place is None else self._reader.read((place[0], place[1]))

    def names(self, part: str) -> Any:
        """Position and ordinal of the change that each row of a part stands for; None when the lane was not asked for them."""
        packed = self._data.get("names", {}).get(part)
        return None if packed is None else np.frombuffer(packed, np.int64).reshape(-1, 2)

    @property
    def places(self) -> list[int]:
        """Where the key columns stand among the columns."""
        return [self.columns.index(name) for name in self.key]


def chunks_by_table(staging: Path, receipts: Sequence[Receipt]) -> dict[tuple[str, str], list[list[StagedChunk]]]:
    """The staged chunks by the source's schema and table, bucket by bucket."""
    found: dict[tuple[str, str], list[list[StagedChunk]]] = {}
    for bucket, receipt in enumerate(receipts):
        reader = StagedReader(staging, receipt)
        for data in receipt["chunks"]:
            buckets = found.setdefault((data["schema"], data["table"]), [[] for _ in receipts])
            buckets[bucket].append(StagedChunk(data, reader))
    return found


def _names(names: Names, fresh: pa.Array | None, stays: pa.ChunkedArray | None) -> dict[str, bytes]:
    """The names of every part's rows, as bytes."""
    found = {"upserts": names.upserts, "deletes": names.deletes}
    if fresh is not None:
        new = fresh.to_numpy(zero_copy_only=False)
        found |= {"inserts": names.upserts[new], "upserts": names.upserts[~new]}
    if stays is not None:
        here = stays.to_numpy()
        found |= {"patches": names.patches[here], "moved": names.patches[~here]}
    return {part: np.ascontiguousarray(rows, np.int64).tobytes() for part, rows in found.items()}


def _stays(patches: pa.Table, table: TableSchema) -> pa.Array:
    """Whether the origin is the destination's row of the same key, so that the row can be changed where it is."""
    stays = pc.is_null(patches.column("from_position"))
    for place, index in enumerate(table.key_indexes):
        own, origin = (_storage(patches.column(name)) for name in (f"r{index}", f"o{place}"))
        stays = pc.and_(stays, pc.fill_null(pc.equal(own, origin), False))
    return stays


def _storage(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The plain values of an extension type, which comparisons do not know."""
    return values.cast(values.type.storage_type) if isinstance(values.type, pa.BaseExtensionType) else values


def _patch_table(patches: Patches, table: TableSchema, left: pa.Table | None, travel: Travel) -> pa.Table:
    """Patches as one table: `r` and a number for the cells, `m` for the marks of cells to be taken from the origin, `o` for
    the origin's key, `from_…` for another bucket's departure, `left_…` for what kind of departure this is itself."""
    columns: dict[pa.Field, Any] = {}
    for letter, part in (("r", travel(patches.rows, table)), ("o", travel(patches.origin, table))):
        for number, (field, values) in enumerate(zip(part.schema, part.columns, strict=True)):
            columns[field.with_name(f"{letter}{number}")] = values
    for number, marks in enumerate(patches.unchanged):
        if marks is not None:
            columns[pa.field(f"m{number}", pa.bool_())] = marks
    for prefix, at in (("from", patches.departure), ("left", left)):
        if at is not None:
            for name in ("position", "ordinal"):
                columns[pa.field(f"{prefix}_{name}", pa.int64())] = at.column(name)
    return pa.table(list(columns.values()), schema=pa.schema(list(columns)))
