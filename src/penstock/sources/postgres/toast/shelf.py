"""A shelf: one table version's part of the memory.

Rows are appended in the chunks in which they came and marked when they are no longer of use; now and then what is left is
brought together. So a small epoch copies its own rows and not the whole memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch
from penstock.core.schema import TableSchema
from penstock.sources.postgres.toast.cells import gathered
from penstock.sources.postgres.toast.keys import joined
from penstock.sources.postgres.toast.recall import UNKNOWN

_MOST_CHUNKS = 64
_SLACK = 4 << 20
"""Bytes of forgotten rows that are not worth bringing the others together."""
_ROW = 64
"""Bytes that a row costs beside its values."""


class Shelf:
    """Values by key; `columns` says which columns of the table are kept."""

    def __init__(self, table: TableSchema, columns: list[int]) -> None:
        self.table, self.columns = table, columns
        self._keys = pa.array([], pa.string())
        self._chunks: list[list[pa.Array]] = [[pa.array([], table.columns[i].type)] for i in columns]
        self._sizes = np.zeros((0, len(columns)), np.int64)
        self.alive = np.zeros(0, np.bool_)
        self.used = np.zeros(0, np.int64)
        """When a row was last read or written; no two are the same."""

    def __len__(self) -> int:
        return int(self.alive.sum())

    @property
    def weights(self) -> Any:
        """Bytes of every row."""
        return self._sizes.sum(axis=1) + _ROW

    def codes(self, keys: pa.Array) -> tuple[Any, Any, int]:
        """The shelf's keys and the given ones as whole numbers, equal for equal keys, and how many different ones there are."""
        encoded = pa.concat_arrays([self._keys, keys]).dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers[: len(self._keys)], numbers[len(self._keys) :], max(1, len(encoded.dictionary))

    def state(self, kept: Any, count: int) -> Any:
        """Where the value of every key and column is, as the loop takes it."""
        state = np.full((count, len(self.columns)), UNKNOWN, np.int64)
        here = np.flatnonzero(self.alive)
        state[kept[here]] = np.where(self._sizes[here] > 0, -2 - here[:, None], UNKNOWN)
        return state

    def values(self, place: int, column: pa.Array, sources: Any) -> tuple[list[pa.Array], Any]:
        """Where the values are that the loop found: arrays, and places in them one after the other."""
        return [column, *self._chunks[place]], np.where(sources >= 0, sources, len(column) - 2 - sources)

    def learn(
        self, batch: Batch, kept: Any, codes: Any, before: Any, state: Any, last: Any, sizes: Any, clock: int, most: int
    ) -> None:
        """Takes in what the loop left: rows that were read are younger, rows that changed are replaced."""
        here = np.flatnonzero(self.alive)
        touched = here[last[kept[here]] >= 0]
        self.used[touched] = clock - len(batch) + last[kept[touched]]
        changed = (before != state).any(axis=1)
        self.alive[here[changed[kept[here]]]] = False
        new = np.flatnonzero(changed)
        new = new[np.argsort(last[new], kind="stable")]
        sources = state[new]
        weight = np.where(sources >= 0, np.take_along_axis(sizes, np.maximum(sources, 0), axis=0), 0)
        if len(self._sizes):
            old = np.take_along_axis(self._sizes, np.minimum(np.maximum(-2 - sources, 0), len(self._sizes) - 1), axis=0)
            weight = np.where(sources <= -2, old, weight)
        worth = np.flatnonzero((weight > 0).any(axis=1))[-most:]
        if len(worth):
            self._append(
                batch, codes, new[worth], np.where(weight[worth] > 0, sources[worth], UNKNOWN), weight[worth], last, clock
            )

    def _append(self, batch: Batch, codes: Any, keys: Any, sources: Any, sizes: Any, last: Any, clock: int) -> None:
        assert batch.handle is not None
        rows = last[keys]
        new: list[pa.Array] = []
        for place, i in enumerate(self.columns):
            column = batch.rows.column(i)
            unknown = sources[:, place] == UNKNOWN
            parts, places = self.values(place, column, sources[:, place])
            if unknown.any():
                # A last part with NULL only, for what is not known.
                parts.append(pa.nulls(1, column.type))
                places[unknown] = sum(len(part) for part in parts) - 1
            new.append(gathered(parts, places))
        for chunks, values in zip(self._chunks, new, strict=True):
            chunks.append(values)
        texts = joined(batch.handle.keys).take(pa.array(rows))
        self._keys = pa.concat_arrays([self._keys, texts])
        self._sizes = np.concatenate([self._sizes, sizes])
        self.alive = np.concatenate([self.alive, np.ones(len(keys), np.bool_)])
        self.used = np.concatenate([self.used, clock - len(batch) + rows])

    def tidy(self) -> None:
        """Brings together what is left when much of it is no longer of use."""
        weights = self.weights
        idle = int(weights[~self.alive].sum())
        if idle <= _SLACK + int(weights[self.alive].sum()) and len(self._chunks[0]) <= _MOST_CHUNKS:
            return
        stays = np.flatnonzero(self.alive)
        self._chunks = [[gathered(chunks, stays)] for chunks in self._chunks]
        self._keys = self._keys.take(pa.array(stays))
        self._sizes, self.used, self.alive = self._sizes[self.alive], self.used[self.alive], self.alive[self.alive]
