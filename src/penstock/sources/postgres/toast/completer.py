"""The completer: what `toast_fetch` asks for, done to a lane's batches between the decoder and the writer.

An exact value comes first: an earlier change of the same row in the epoch, or with `cache` in the epochs before, carried it.
What is still unknown is read from the server with `source` and `full`, and marked as read later; or it stays unknown. A row that
the server no longer has keeps its gap, because its delete, or the key it has now, is in the log behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch, Op
from penstock.core.epoch import Epoch
from penstock.journal.reader import SliceReader
from penstock.journal.record import Slice
from penstock.sources.base import Completer
from penstock.sources.postgres import copytext
from penstock.sources.postgres.rds import RdsIam
from penstock.sources.postgres.toast import recall
from penstock.sources.postgres.toast import retold as describing
from penstock.sources.postgres.toast.cells import Cells, count_gaps, gaps, put
from penstock.sources.postgres.toast.keys import joined
from penstock.sources.postgres.toast.memory import Memory
from penstock.sources.postgres.toast.reselect import Fetched, Reselect
from penstock.sources.postgres.toast.retold import retold

FETCH_BYTES = 16 << 20
"""About how much is read from the server in one go."""
_FIRST_ROWS = 8
"""Rows of a table of which nothing is known yet; each fetch may ask for twice as many as the one before."""
_MOST_KEYS = 50_000


class PostgresCompleter(Completer):
    """Fills gaps as the flow's `toast_fetch` says."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        super().__init__(recipe)
        self._mode = str(recipe["mode"])
        self._sees_all = bool(recipe.get("sees_all", True))
        self._memory = Memory(int(recipe["cache_size"]))
        self._reselect = Reselect(str(recipe["dsn"]), str(recipe["flow"]), RdsIam.from_data(recipe.get("iam")))
        self._seen: tuple[int, int, int] | None = None
        self._most: dict[str, int] = {}

    def complete(
        self, epoch: Epoch, bucket: int, journal: SliceReader, slices: Sequence[Slice], batches: Iterator[Batch]
    ) -> Iterator[Batch]:
        """The batches with what could be found; what stays unknown is counted."""
        self.counts, counts = {}, Counter[str]()
        # A lane that missed an epoch, or had another share of the keys, cannot know what happened to a row meanwhile.
        goes_on = self._mode == "cache" and self._seen == (epoch.number - 1, bucket, epoch.buckets)
        self._seen = None
        if not goes_on:
            self._memory.clear()
        doubts = retold(journal, slices)
        for batch in batches:
            if self._sees_all:
                batch, filled = self._memory.take(batch, doubts.get(batch.table.identity, ()))
                counts["toast_filled"] += filled
            for part in self._asked(batch, counts):
                counts["toast_missing"] += count_gaps(part)
                yield replace(part, handle=None)
        for identity in doubts:
            # Its rows of this epoch may all have been before the doubt, or in another lane.
            self._memory.forget(identity)
        self._seen = (epoch.number, bucket, epoch.buckets)
        self.counts = {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        """Gives back the connection to the server."""
        self._reselect.close()

    def _asked(self, batch: Batch, counts: Counter[str]) -> Iterator[Batch]:
        """The batch with what the server has, in parts when that may be much."""
        table = batch.table
        columns = [i for i, flags in enumerate(batch.unchanged) if flags is not None]
        if self._mode == "cache" or not columns or batch.handle is None or not table.key or not table.identity:
            yield batch
            return
        rows = np.unique(np.concatenate([gaps(batch, i) for i in columns]))
        while len(rows):
            most = self._most.get(table.identity, _FIRST_ROWS)
            if len(rows) <= most:
                break
            # The cut stands before a row with a gap, and such a row never parts a LEAVE from its ENTER but by following it.
            cut = int(rows[most])
            here = np.arange(len(batch)) < _before_pair(batch, cut)
            yield self._filled(batch.filter(pa.array(here)), counts)
            batch = batch.filter(pa.array(~here))
            rows = rows[most:] - int(here.sum())
        yield self._filled(batch, counts)

    def _filled(self, batch: Batch, counts: Counter[str]) -> Batch:
        assert batch.handle is not None
        gapped = {i: rows for i in range(len(batch.unchanged)) if len(rows := gaps(batch, i))}
        if not gapped:
            return batch
        rows = np.unique(np.concatenate(list(gapped.values())))
        keys = joined(batch.handle.keys).take(pa.array(rows)).dictionary_encode()
        codes = keys.indices.to_numpy()
        first = np.zeros(len(keys.dictionary), np.int64)
        first[codes[::-1]] = rows[::-1]
        columns = list(gapped)
        if self._mode == "full":
            columns = [i for i in range(len(batch.unchanged)) if i not in batch.table.key_indexes]
        fetched = self._reselect.fetch(batch, first, columns)
        if fetched is None:
            return batch
        width = 1 + fetched.size // max(1, len(fetched.asked))
        self._most[batch.table.identity] = max(1, min(_MOST_KEYS, 2 * len(first), FETCH_BYTES // width))
        cells = _cells(fetched, rows, codes, len(first), gapped if self._mode == "source" else {})
        counts["toast_fetched"] += sum(len(c.rows) for c in cells.values())
        return put(batch, cells, read_later=True)


def _cells(fetched: Fetched, rows: Any, codes: Any, keys: int, gapped: Mapping[int, Any]) -> dict[int, Cells]:
    """What was fetched, for every row that asked; with `gapped` only for its cells."""
    place = np.full(keys, -1, np.int64)
    place[fetched.asked] = np.arange(len(fetched.asked))
    cells = {}
    for i, (values, odd) in fetched.values.items():
        here = place[codes] >= 0
        if gapped:
            here &= np.isin(rows, gapped[i])
        sources = place[codes[here]]
        if len(sources):
            cells[i] = Cells(rows[here], [values], sources, odd)
    return cells


def _before_pair(batch: Batch, cut: int) -> int:
    """The cut, moved so that it does not stand between a LEAVE and its ENTER."""
    return cut - 1 if cut and batch.op[cut - 1].as_py() == Op.LEAVE else cut


def warm() -> None:
    """Compiles or loads the kernels."""
    recall.warm()
    describing.warm()
    copytext.warm()
