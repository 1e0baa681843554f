"""The memory: the last known big values of recent rows, bounded in rows and bytes, in Arrow.

It answers only for keys of which it has seen every change since it took their value in: whoever feeds it must clear it when a
change may have passed by. Rows that are small can never be TOASTed and are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch
from penstock.core.schema import TableSchema
from penstock.sources.postgres.toast import recall
from penstock.sources.postgres.toast.cells import Cells, put
from penstock.sources.postgres.toast.keys import joined
from penstock.sources.postgres.toast.shelf import Shelf

MOST_BYTES = 64 << 20
BIG = 64
"""Bytes of text below which a value is not kept. The server moves values out of rows of 2 kB and more; a table's
toast_tuple_target can lower that to 128 bytes, which the value shares with others."""


class Memory:
    """Fills gaps from earlier changes of the same row, and takes in what later ones may need."""

    def __init__(self, most_rows: int, most_bytes: int = MOST_BYTES) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._shelves: dict[str, Shelf] = {}
        self._clock = 0

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in self._shelves.values())

    def clear(self) -> None:
        """Forgets everything."""
        self._shelves.clear()

    def forget(self, identity: str) -> None:
        """Forgets one table."""
        self._shelves.pop(identity, None)

    def take(self, batch: Batch, doubts: Sequence[int] = ()) -> tuple[Batch, int]:
        """The batch with the gaps filled that earlier rows can fill, and how many those are; batches come in log order.

        `doubts` are the positions of transactions in which something may have happened to rows that the log does not show.
        """
        table = batch.table
        columns = [i for i, c in enumerate(table.columns) if _can_be_toasted(c.type) and c.name not in table.key]
        if batch.handle is None or not table.key or not columns:
            return batch, 0
        shelf = self._shelf(table, columns)
        sizes = np.stack([_sizes(batch.rows.column(i)) for i in columns], axis=1)
        cells = _cells(batch, columns)
        if not len(shelf) and not (sizes >= BIG).any() and not (cells == recall.GAP).any():
            return batch, 0
        numbers = [_numbers(part) for part in (batch.op, batch.position, batch.ordinal)]
        kept, codes, count = shelf.codes(joined(batch.handle.keys))
        before = shelf.state(kept, count)
        state, last = before.copy(), np.full(count, -1, np.int64)
        found = np.full(cells.shape, recall.UNKNOWN, np.int64)
        recall.walk(*numbers, codes, cells, np.array(doubts, np.int64), state, found, last)
        filled = {
            i: Cells(rows, *shelf.values(place, batch.rows.column(i), found[rows, place]))
            for place, i in enumerate(columns)
            if len(rows := np.flatnonzero(found[:, place] != recall.UNKNOWN))
        }
        sizes[sizes < BIG] = 0
        self._clock += len(batch)
        shelf.learn(batch, kept, codes, before, state, last, sizes, self._clock, self._most_rows)
        self._trim()
        return put(batch, filled, read_later=False), sum(len(c.rows) for c in filled.values())

    def _shelf(self, table: TableSchema, columns: list[int]) -> Shelf:
        """The table's shelf, empty when the table is another one or has another version than the last time."""
        name = table.identity or table.qualified
        shelf = self._shelves.get(name)
        if shelf is None or shelf.table != table:
            shelf = self._shelves[name] = Shelf(table, columns)
        return shelf

    def _trim(self) -> None:
        """Forgets the least recently used rows over all tables."""
        shelves = self._shelves.values()
        used = np.concatenate([shelf.used[shelf.alive] for shelf in shelves])
        weights = np.concatenate([shelf.weights[shelf.alive] for shelf in shelves])
        if len(used) > self._most_rows or weights.sum() > self._most_bytes:
            newest = np.argsort(-used, kind="stable")
            fits = int(np.searchsorted(np.cumsum(weights[newest]), self._most_bytes, side="right"))
            stays = min(fits, self._most_rows)
            oldest = used[newest[stays - 1]] if stays else np.iinfo(np.int64).max
            for shelf in shelves:
                shelf.alive &= shelf.used >= oldest
        for shelf in shelves:
            shelf.tidy()


def _can_be_toasted(arrow: pa.DataType) -> bool:
    """Only values of variable length leave their row; a numeric that a decimal holds is shorter than the pointer to it."""
    return not (pa.types.is_primitive(arrow) or pa.types.is_decimal(arrow) or pa.types.is_fixed_size_binary(arrow))


def _sizes(column: pa.Array) -> Any:
    """Bytes of every value, 0 for NULL; of nested values the mean, and never small."""
    kind = column.type
    plain = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    if any(test(kind) for test in plain):
        return _numbers(pc.fill_null(pc.binary_length(column), 0)).astype(np.int64)
    return np.where(_numbers(pc.is_valid(column)), max(BIG, column.nbytes // max(1, len(column))), 0)


def _cells(batch: Batch, columns: list[int]) -> Any:
    cells = np.zeros((len(batch), len(columns)), np.uint8)
    for place, i in enumerate(columns):
        flags = batch.unchanged[i]
        if flags is not None:
            cells[_numbers(flags), place] = recall.GAP
        odd = batch.odd.get(batch.table.columns[i].name)
        if odd is not None:
            cells[odd.rows.to_numpy(), place] = recall.UNUSABLE
    return cells


def _numbers(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)
