"""A wave: changes of any number of tables in log order, as texts to be sent and numbers that say what must wait for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Op
from penstock.core.schema import TableSchema
from penstock.destinations.folding.codes import key_codes
from penstock.formats.json import values
from penstock.formats.json.format import lines
from penstock.formats.kernels import compiled, event_id
from penstock.formats.kernels.event_id import event_ids

# What may wait in memory as rows; as JSON it is some four times as much.
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Part:
    """The changes of one table in a wave, each with the number of its group.

    A group is the keys that changes of key tie together, most often one key: its changes go one after the other. A table
    without a key is one group.
    """

    batch: Batch
    groups: Any

    @property
    def table(self) -> TableSchema:
        """The table."""
        return self.batch.table

    @cached_property
    def keys(self) -> tuple[pa.Array, pa.Array]:
        """The key of every change as text, and the one that it left or NULL; both only for tables that have a key."""
        entering = pc.equal(self.batch.op, pa.scalar(int(Op.ENTER), pa.uint8()))
        now = _key_texts(self.batch.rows, self.table)
        if self.batch.before is None:
            return now, pa.nulls(len(now), now.type)
        return now, pc.if_else(entering, _key_texts(self.batch.before, self.table), pa.scalar(None, now.type))


class Wave:
    """Changes in log order; a change is named by its number in that order. `end` follows each change's text."""

    def __init__(self, batches: Sequence[Batch], source: str, end: str = "") -> None:
        self.parts: list[Part] = []
        found = 0
        for batch in batches:
            groups, count = _groups(batch)
            self.parts.append(Part(batch, groups + found))
            found += count
        position, ordinal, op = (
            np.concatenate([getattr(b, name).to_numpy(zero_copy_only=False) for b in batches])
            for name in ("position", "ordinal", "op")
        )
        order = np.lexsort((ordinal, position))
        self.position, self.ordinal = position[order], ordinal[order]
        self.groups = np.concatenate([part.groups for part in self.parts])[order]
        self.part = np.repeat(np.arange(len(batches)), [len(b) for b in batches])[order]
        self.truncates = op[order] == Op.TRUNCATE
        self._ids = event_ids(source, pa.array(self.position), pa.array(self.ordinal)).cast(pa.large_string())
        texts = [lines(batch, source, end) for batch in batches]
        # One table's changes stand in log order already.
        self._texts = texts[0] if len(texts) == 1 else pa.concat_arrays(texts).take(pa.array(order))
        self._id_bytes, self._text_bytes = _content(self._ids), _content(self._texts)
        self._width = len(self._id_bytes) // len(order)
        self._edges = _offsets(self._texts)

    def __len__(self) -> int:
        return len(self.position)

    @property
    def sizes(self) -> Any:
        """Bytes of every change's text."""
        return np.diff(self._edges)

    def text(self, change: int) -> memoryview:
        """A change's JSON object."""
        return self._text_bytes[self._edges[change] : self._edges[change + 1]]

    def event_id(self, change: int) -> str:
        """A change's event id."""
        return str(self._id_bytes[change * self._width : (change + 1) * self._width], "ascii")

    def together(self, changes: Any) -> tuple[memoryview, memoryview]:
        """The texts and the event ids of many changes, each behind the other."""
        places = pa.array(changes)
        return _content(self._texts.take(places)), _content(self._ids.take(places))

    def table(self, change: int) -> TableSchema:
        """The table that a change is of."""
        return self.parts[int(self.part[change])].table

    def stretches(self) -> Iterator[Any]:
        """The changes in order, cut so that a TRUNCATE stands alone: nothing passes it."""
        cuts = np.flatnonzero(self.truncates)
        edges = np.unique(np.concatenate([[0, len(self)], cuts, cuts + 1]))
        for begin, end in pairwise(edges.tolist()):
            yield np.arange(begin, end)

    def tracks(self, changes: Any, count: int) -> list[Any]:
        """The changes shared out over so many tracks, in order on each; a group is on one track."""
        if count == 1 or len(changes) == 1:
            return [changes]
        # The dictionary numbers groups as they appear, so that different keys take turns.
        turns = pc.dictionary_encode(pa.array(self.groups[changes])).indices.to_numpy(zero_copy_only=False) % count
        shared = np.split(changes[np.argsort(turns, kind="stable")], np.cumsum(np.bincount(turns, minlength=count))[:-1])
        return [track for track in shared if len(track)]


def waves(batches: Iterator[Batch], source: str, end: str = "") -> Iterator[Wave]:
    """Waves from batches in the order of the log; a table stands in a wave once."""
    waiting: dict[tuple[str, str], Batch] = {}
    size = 0
    for batch in batches:
        name = (batch.table.schema, batch.table.name)
        if waiting and (name in waiting or size + batch.nbytes > _MOST_BYTES):
            yield Wave(list(waiting.values()), source, end)
            waiting, size = {}, 0
        if len(batch):
            waiting[name] = batch
            size += batch.nbytes
    if waiting:
        yield Wave(list(waiting.values()), source, end)


def _groups(batch: Batch) -> tuple[Any, int]:
    """The group of every change, and how many there are."""
    if not batch.table.key:
        return np.zeros(len(batch), np.int64), 1
    entering = pc.equal(batch.op, pa.scalar(int(Op.ENTER), pa.uint8()))
    left = batch.before.filter(entering) if batch.before is not None else None
    keys = [batch.rows.column(index) for index in batch.table.key_indexes]
    if left is not None and left.num_rows:
        olds = [left.column(index) for index in batch.table.key_indexes]
        keys = [pa.concat_arrays([key, old]) for key, old in zip(keys, olds, strict=True)]
    codes, count = key_codes(keys)
    if len(codes) > len(batch):
        _tie(codes, np.flatnonzero(entering.to_numpy(zero_copy_only=False)), len(batch), np.arange(count))
    return codes[: len(batch)], count


@compiled
def _tie(codes: Any, entering: Any, rows: Any, root: Any) -> None:
    """Gives keys that a change of key ties together one number; the old key of the n-th such change stands n behind the rows."""
    for n in range(len(entering)):
        one, other = codes[entering[n]], codes[rows + n]
        while root[one] != one:
            root[one] = root[root[one]]
            one = root[one]
        while root[other] != other:
            root[other] = root[root[other]]
            other = root[other]
        root[max(one, other)] = min(one, other)
    for row in range(rows):
        code = codes[row]
        while root[code] != code:
            code = root[code]
        codes[row] = code


def _offsets(texts: pa.Array) -> Any:
    return np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]


def _content(texts: pa.Array) -> memoryview:
    """The texts as they lie behind each other in memory."""
    edges = _offsets(texts)
    return memoryview(texts.buffers()[2])[edges[0] : edges[-1]]


def _key_texts(rows: pa.RecordBatch, table: TableSchema) -> pa.Array:
    return pc.binary_join_element_wise(
        *(values.to_text(rows.column(i)) for i in table.key_indexes), pa.scalar(",", pa.large_string())
    )


def warm() -> None:
    """Compiles or loads the kernels that a lane runs."""
    event_id.warm()
    values.warm()
    _tie(np.array([0, 1, 0], np.int64), np.array([1], np.int64), 2, np.arange(2))
