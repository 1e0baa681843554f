"""The fold: the changes of a bucket brought down to the last state per key, for destinations that hold tables.

Per key the last operation wins; per column the last known value wins, so a column that the log left out never erases
anything. A row whose column stays unknown through the whole chunk names its origin: the key of the destination's row that
has the value, which is another key than its own after a key change. When the row came from a key of another bucket, the
origin is that bucket's departure of the same position and ordinal; `order` says in which order chunks can be applied so
that every origin is there when it is needed.

A key change is a LEAVE directly followed by its ENTER when both keys are in one bucket. Where the two are apart, in two
buckets or at the cut between two chunks, the LEAVE is a departure and the ENTER refers to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch, Op
from penstock.core.schema import TableSchema
from penstock.destinations.folding.codes import key_codes
from penstock.destinations.folding.outcome import FROM_ORIGIN, Outcome, Rows
from penstock.errors import DecodeFailed

# A merge epoch of 64 MB keeps the destination's memory near 300 MB; one of 256 MB took up to 2.3 GB.
CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class Patches:
    """Rows that are complete only together with their origin.

    `rows` has the table's columns; `unchanged` marks, per column, the cells to be taken from the origin (None: no cell).
    `origin` has the key columns of the destination's present row; where `departure` (position and ordinal) is not null,
    the origin is that departure of another bucket instead. A null key means that there is no origin: NULL is the value.
    """

    rows: pa.Table
    unchanged: tuple[pa.Array | None, ...]
    origin: pa.Table
    departure: pa.Table

    @property
    def foreign(self) -> int:
        """How many rows need another bucket's departure."""
        return len(self.departure) - int(self.departure.column("position").null_count)


@dataclass(frozen=True)
class Departures:
    """Rows as they left their key for a key of another bucket, each with the position and ordinal of the change."""

    at: pa.Table
    patches: Patches


@dataclass(frozen=True)
class Names:
    """By which change a row is known: position and ordinal, as two columns of numbers, of the last change of its key."""

    upserts: Any
    patches: Any
    deletes: Any


@dataclass(frozen=True)
class Folded:
    """A chunk of one table's changes as what is to be done, in this order: empty the table when `truncated`; complete the
    patches and departures from the rows that are there now; remove the rows of every key in `deletes`, `upserts` and
    `patches`; add `upserts` and the completed patches."""

    table: TableSchema
    truncated: bool
    deletes: pa.Table
    upserts: pa.Table
    patches: Patches | None
    departures: Departures | None
    changes: int
    last: tuple[int, int]
    """Position and ordinal of the chunk's last change."""
    fresh: pa.Array
    """Whether the log says of each of the `upserts` that it was not there before; the destination may know better."""
    names: Names | None = None
    loaded: bool = False
    """Whether these are rows of a load; a chunk never has rows of a load and changes of the stream."""


class Fold:
    """Folds batches of any number of tables, holding at most `most` bytes of them; with `named` rows can be told by a change."""

    def __init__(self, most: int = CHUNK_BYTES, *, named: bool = False) -> None:
        self._most, self._named = most, named
        self._waiting: dict[tuple[str, str], list[Batch]] = {}
        self._bytes: dict[tuple[str, str], int] = {}

    def add(self, batch: Batch) -> Iterator[Folded]:
        """Takes the next batch; yields the chunks that are full, end with an older version of the table, or end a load's rows."""
        for part in _runs(batch):
            yield from self._add(part)

    def _add(self, batch: Batch) -> Iterator[Folded]:
        name = (batch.table.schema, batch.table.name)
        waiting = self._waiting.get(name)
        if waiting and (waiting[-1].table != batch.table or _is_loaded(waiting[-1]) != _is_loaded(batch)):
            yield from self._fold(name)
        self._waiting.setdefault(name, []).append(batch)
        self._bytes[name] = self._bytes.get(name, 0) + batch.nbytes
        while sum(self._bytes.values()) >= self._most:
            largest = max(self._bytes, key=lambda n: self._bytes[n])
            if not self._bytes[largest]:
                break
            yield from self._fold(largest)

    def end(self) -> Iterator[Folded]:
        """Yields what is left."""
        for name in list(self._waiting):
            yield from self._fold(name)

    def _fold(self, name: tuple[str, str]) -> Iterator[Folded]:
        batches = self._waiting.pop(name, [])
        self._bytes.pop(name, None)
        if batches and sum(len(batch) for batch in batches):
            yield fold(batches, named=self._named)


def fold(batches: list[Batch], *, named: bool = False) -> Folded:
    """The batches of one version of one table, in log order, as one chunk."""
    # Whoever only reads what was folded, as a worker's driver does, needs no compiler.
    from penstock.destinations.folding.kernel import fold_rows

    table = batches[0].table
    op, position, ordinal = (
        np.concatenate([_numbers(getattr(b, name)) for b in batches]) for name in ("op", "position", "ordinal")
    )
    keys, enters = _keys(batches, op)
    _check(keys, op, table)
    codes, count = key_codes(keys)
    doubtful = [i for i in range(len(table.columns)) if any(b.unchanged[i] is not None for b in batches)]
    outcome = fold_rows(op, position, ordinal, codes, enters, count, _marks(batches, doubtful, len(op)))
    assembly = _Assembly(table, batches, keys, doubtful, position, ordinal)
    upserts, patches, whole = assembly.split(outcome.live)
    departures = None
    if len(outcome.at):
        at = pa.table({"position": position[outcome.at], "ordinal": ordinal[outcome.at]})
        departures = Departures(at, assembly.patches(outcome.left))
    return Folded(
        table=table,
        truncated=outcome.truncated,
        deletes=assembly.key_table(outcome.gone),
        upserts=upserts,
        patches=patches,
        departures=departures,
        changes=int((op != Op.LEAVE).sum()),
        last=(int(position[-1]), int(ordinal[-1])),
        fresh=_fresh(op, codes, whole, outcome.truncated),
        names=_names(outcome, codes, position, ordinal) if named else None,
        loaded=_is_loaded(batches[0]),
    )


def _is_loaded(batch: Batch) -> bool:
    """Whether a batch that `_runs` gave holds rows of a load."""
    return bool(batch.op[0].as_py() == Op.SNAPSHOT)


def _runs(batch: Batch) -> Iterator[Batch]:
    """The batch in pieces that are of a load or of the stream, hardly ever more than one."""
    if not len(batch):
        return
    loaded = _numbers(batch.op) == Op.SNAPSHOT
    edges = [0, *(np.flatnonzero(loaded[1:] != loaded[:-1]) + 1).tolist(), len(batch)]
    if len(edges) == 2:
        yield batch
        return
    for begin, end in itertools.pairwise(edges):
        yield batch.slice(begin, end - begin)


def _names(outcome: Outcome, codes: Any, position: Any, ordinal: Any) -> Names:
    at = np.stack([position, ordinal], axis=1)
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes[: len(at)]] = np.arange(len(at))
    partial = _is_partial(outcome.live)
    return Names(at[outcome.live.last[~partial]], at[outcome.live.last[partial]], at[last[codes[outcome.gone]]])


def _is_partial(rows: Rows) -> Any:
    """Which rows need their origin."""
    return (rows.sources == FROM_ORIGIN).any(axis=1)


@dataclass(frozen=True)
class _Assembly:
    """Arrow tables from the numbers that the kernel found."""

    table: TableSchema
    batches: list[Batch]
    keys: list[pa.Array]
    doubtful: list[int]
    position: Any
    ordinal: Any

    def split(self, live: Rows) -> tuple[pa.Table, Patches | None, Any]:
        """The rows that are complete, those that need their origin, and the last changes of the former."""
        partial = _is_partial(live)
        if not partial.any():
            return self._rows(live), None, live.last
        whole = Rows(*(part[~partial] for part in live))
        return self._rows(whole), self.patches(Rows(*(part[partial] for part in live))), whole.last

    def patches(self, rows: Rows) -> Patches:
        """Rows with what is known of them, and where the rest is."""
        unchanged: list[pa.Array | None] = []
        for column in range(len(self.table.columns)):
            doubtful = column in self.doubtful
            marks = rows.sources[:, self.doubtful.index(column)] == FROM_ORIGIN if doubtful else rows.last < 0
            unchanged.append(pa.array(marks) if marks.any() else None)
        local = rows.departure < 0
        at = np.where(local, 0, rows.departure)
        departure = {"position": pa.array(self.position[at], mask=local), "ordinal": pa.array(self.ordinal[at], mask=local)}
        return Patches(self._rows(rows), tuple(unchanged), self.key_table(rows.origin), pa.table(departure))

    def key_table(self, places: Any) -> pa.Table:
        """Key columns by places among the keys; -1 gives nulls."""
        fields = [self.table.arrow.field(i) for i in self.table.key_indexes]
        return pa.table([_take(key, places) for key in self.keys], schema=pa.schema(fields))

    def _rows(self, rows: Rows) -> pa.Table:
        whole = pa.Table.from_batches([batch.rows for batch in self.batches], schema=self.table.arrow)
        columns = self._at_last(whole, rows.last)
        for place, column in enumerate(self.doubtful):
            if not np.array_equal(rows.sources[:, place], rows.last):
                columns[column] = _take(whole.column(column), rows.sources[:, place])
        return pa.table(columns, schema=self.table.arrow)

    def _at_last(self, whole: pa.Table, last: Any) -> list[Any]:
        """Every column at the rows' last changes."""
        if len(last) and (last[0] < 0 or (np.diff(last) <= 0).any()):
            return [_take(column, last) for column in whole.columns]
        # Rows stand in log order, so each batch is filtered where it lies, without joining 64 MB of strings first.
        keep = np.zeros(whole.num_rows, dtype=np.bool_)
        keep[last] = True
        picked, start = [], 0
        for batch in self.batches:
            mask = keep[start : start + len(batch)]
            start += len(batch)
            if mask.any():
                picked.append(batch.rows if mask.all() else batch.rows.filter(pa.array(mask)))
        return list(pa.Table.from_batches(picked, schema=self.table.arrow).columns)


def _keys(batches: list[Batch], op: Any) -> tuple[list[pa.Array], Any]:
    """The key columns of all rows followed by the old keys of the ENTER rows, and where each ENTER's old key stands."""
    enters = np.full(len(op), -1, np.int64)
    entering = op == Op.ENTER
    enters[entering] = len(op) + np.arange(int(entering.sum()))
    keys = []
    for index in batches[0].table.key_indexes:
        parts = [batch.rows.column(index) for batch in batches]
        start = 0
        for batch in batches:
            mask = entering[start : start + len(batch)]
            start += len(batch)
            if mask.any() and batch.before is not None:
                parts.append(batch.before.column(index).filter(pa.array(mask)))
        keys.append(pa.concat_arrays(parts))
    return keys, enters


def _check(keys: list[pa.Array], op: Any, table: TableSchema) -> None:
    """No change but a TRUNCATE comes without a key."""
    if max((key.null_count for key in keys), default=0) > int((op == Op.TRUNCATE).sum()):
        raise DecodeFailed(f"{table.qualified}: a change has NULL in its key", table=table.qualified)


def _fresh(op: Any, codes: Any, last: Any, truncated: bool) -> pa.Array:
    """Which of the rows, given by their last changes, began in this chunk: their keys' first change added them."""
    if truncated:
        return pa.array(np.ones(len(last), np.bool_))
    rows = np.arange(len(op) - 1, -1, -1)
    first = np.zeros(int(codes.max(initial=0)) + 1, np.int64)
    first[codes[: len(op)][::-1]] = rows
    return pa.array(np.isin(op[first[codes[last]]], (Op.INSERT, Op.SNAPSHOT)))


def _marks(batches: list[Batch], doubtful: list[int], rows: int) -> Any:
    """Which cells of the doubtful columns the log left out."""
    marks = np.zeros((rows, len(doubtful)), np.bool_)
    for place, column in enumerate(doubtful):
        start = 0
        for batch in batches:
            flags = batch.unchanged[column]
            if flags is not None:
                marks[start : start + len(batch), place] = _numbers(flags)
            start += len(batch)
    return marks


def _numbers(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


def _take(column: Any, places: Any) -> Any:
    missing = places < 0
    return column.take(pa.array(np.where(missing, 0, places), mask=missing) if missing.any() else pa.array(places))
