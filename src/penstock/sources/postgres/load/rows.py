"""Rows of a chunk's file as batches that equal the stream's, value for value and bucket for bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch, Image, Op
from penstock.core.cutting import cut
from penstock.core.schema import Column, TableSchema
from penstock.errors import ChunkDamaged
from penstock.sources.postgres import columns, copybinary, copytext
from penstock.sources.postgres.load import cells, forms
from penstock.sources.postgres.load.file import ChunkFile
from penstock.sources.postgres.load.forms import Fields

STEP_BYTES: Final = 4 << 20
"""Room for a block, which stays in the processor's cache while it is converted, and for what was left of the one before."""
_NUMBER: Final = Column("n", pa.int64(), "bigint")
_BYTE: Final = pa.uint8()
_WHOLE: Final = pa.int64()
_MOMENT: Final = pa.timestamp("us", "UTC")
_TEXT: Final = 116
_NULL: Final = 110


class Identity(NamedTuple):
    """Where rows of a file stand among all changes."""

    position: int
    base: int
    read_at: int


class Located(NamedTuple):
    """Cells of some rows, a line per column, and the rows' numbers."""

    b: Any
    kind: Any
    offset: Any
    length: Any
    numbers: Any
    forms: Sequence[str] | None = None
    """The binary forms of the columns; without them the cells are texts."""

    @property
    def fields(self) -> Fields:
        """The same as fields of binary rows."""
        return Fields(self.b, self.offset, self.length, self.numbers)


def decode(path: Path, table: TableSchema, identity: Identity, bucket: int, buckets: int) -> Iterator[Batch]:
    """The rows of one bucket, and for a list of keys those that were not there."""
    with ChunkFile(path) as file:
        if file.head["columns"] != [c.name for c in table.columns]:
            raise ChunkDamaged(f"the chunk file {path.name} has other columns than {table.qualified}", file=path.name)
        bounds: Mapping[str, Any] = file.head["chunk"]["bounds"]
        listed = "keys" in bounds
        given: list[str] | None = file.head.get("forms")
        seen = np.zeros(len(bounds["keys"][0]) + 1 if listed else 0, np.bool_)
        for found in _located(file, path, len(table.columns) + listed, given):
            part = found
            if listed:
                part, first = _apart(found)
                seen[first] = True
            mine = _share(part, table, bucket, buckets)
            if mine is not None:
                yield _batch(mine, table, identity, Op.SNAPSHOT)
        if listed:
            gone = _share(_absent(bounds, table, np.nonzero(~seen[1:])[0], file.foot.rows), table, bucket, buckets)
            if gone is not None:
                yield _batch(gone, table, identity, Op.DELETE)


def _apart(found: Located) -> tuple[Located, Any]:
    """The rows without their first column, and that, which is a number."""
    rest = Located(found.b, found.kind[1:], found.offset[1:], found.length[1:], found.numbers, found.forms)
    if found.forms is None:
        return rest, columns.build(found.b, found.kind[0], found.offset[0], found.length[0], _NUMBER)[0].to_numpy()
    first = Fields(found.b, found.offset[:1], found.length[:1], found.numbers)
    return rest, forms.build_all(first, [forms.NUMBER], [_NUMBER])[0][0].to_numpy()


def _located(file: ChunkFile, path: Path, width: int, given: Sequence[str] | None) -> Iterator[Located]:
    """All rows, a block or some at a time; the buffer grows for a row that is larger."""
    room = _ROOMS.pop() if _ROOMS else _Room()
    if len(room.b) != STEP_BYTES:
        room = _Room()
    try:
        yield from _located_in(room, file, path, width, given)
    finally:
        # One that has grown for a row is given up: the like of it may never come again.
        if len(room.b) == STEP_BYTES:
            _ROOMS.append(room)


def _located_in(room: _Room, file: ChunkFile, path: Path, width: int, given: Sequence[str] | None) -> Iterator[Located]:
    b = room.b
    fill, before = 0, 0
    ended = given is None or not file.foot.bytes
    while size := file.next_size():
        # Whole blocks, as many as there is room for.
        while size and (fill == 0 or fill + size <= len(b)):
            if size > len(b):
                b = room.b = np.empty(size, np.uint8)
            fill += file.read_into(memoryview(b)[fill:])
            size = file.next_size()
        count, at, reason, cells = room.locate(fill, width, binary=given is not None)
        if reason == copybinary.END and at == fill and not size:
            ended = True
        elif reason != copytext.MORE:
            raise ChunkDamaged(f"the chunk file {path.name} holds a row that COPY did not write", file=path.name)
        if count:
            yield Located(b, *cells, np.arange(before + 1, before + 1 + count), given)
        before += count
        rest = fill - at
        if rest + size > len(b):
            # A row that is larger than the buffer: what is there of it moves to one that has room for the next block.
            grown = np.empty(max(rest + size, 2 * len(b)), np.uint8)
            grown[:rest] = b[at:fill]
            b = room.b = grown
        elif rest:
            b[:rest] = b[at:fill].copy()
        fill = rest
    if fill or before != file.foot.rows or not ended:
        raise ChunkDamaged(f"the chunk file {path.name} has other rows than its foot says", file=path.name)


class _Room:
    """Where bytes are read and cells are located, used for one file after the other: fresh memory costs more than what is put
    there."""

    def __init__(self) -> None:
        self.b: Any = np.empty(STEP_BYTES, np.uint8)
        self._kind: Any = np.empty(0, np.uint8)
        self._offset: Any = np.empty(0, np.int64)
        self._length: Any = np.empty(0, np.int64)

    def locate(self, fill: int, width: int, *, binary: bool) -> tuple[int, int, int, tuple[Any, Any, Any]]:
        """Locates the rows of b[:fill]: how many there are, the position behind them, why it stopped there, and their cells."""
        least = 7 + 4 * width if binary else 5 + max(1, width)
        shape = (max(1, width), fill // least + 1)
        size = shape[0] * shape[1]
        if len(self._offset) < size:
            self._kind, self._offset, self._length = (np.empty(size, t) for t in (np.uint8, np.int64, np.int64))
        kind, offset = self._kind[:size].reshape(shape), self._offset[:size].reshape(shape)
        if binary:
            length = self._length.view(np.int32)[:size].reshape(shape)
            count, at, reason = copybinary.split(self.b, 0, fill, 0, width, offset, length)
        else:
            length = self._length[:size].reshape(shape)
            count, at, reason = copytext.split(self.b, 0, fill, 0, width, kind, offset, length)
        return count, at, reason, (kind[:width, :count], offset[:width, :count], length[:width, :count])


_ROOMS: Final[list[_Room]] = []
"""Rooms that nobody uses now: as many as there were files open at once."""


def _share(found: Located, table: TableSchema, bucket: int, buckets: int) -> Located | None:
    if buckets > 1:
        keys, oid = table.key_indexes, int(table.identity)
        if found.forms is None:
            mine = cells.owned(found.b, found.kind, found.offset, found.length, keys, oid, bucket, buckets)
        else:
            mine = forms.owned(found.fields, found.forms, keys, oid, bucket, buckets)
        if not mine.all():
            kind = found.kind if found.forms is not None else np.ascontiguousarray(found.kind[:, mine])
            offset, length = (np.ascontiguousarray(m[:, mine]) for m in (found.offset, found.length))
            found = Located(found.b, kind, offset, length, found.numbers[mine], found.forms)
    return found if len(found.numbers) else None


def _absent(bounds: Mapping[str, Any], table: TableSchema, missing: Any, rows: int) -> Located:
    """Keys that were asked for and not there, as cells; all other columns are NULL."""
    shape = (len(table.columns), len(missing))
    kind = np.full(shape, _NULL, np.uint8)
    offset, length = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    data = bytearray()
    places = {c.name: i for i, c in enumerate(table.columns)}
    for (name, *_), texts in zip(bounds["key"], bounds["keys"], strict=True):
        encoded = [str(texts[i]).encode() for i in missing]
        sizes = np.array([len(e) for e in encoded], np.int64)
        line = places[name]
        kind[line] = _TEXT
        length[line] = sizes
        offset[line] = len(data) + np.cumsum(sizes) - sizes
        data += b"".join(encoded)
    b = np.frombuffer(bytes(data) or b"\0", np.uint8)
    return Located(b, kind, offset, length, rows + 1 + missing)


def _batch(found: Located, table: TableSchema, identity: Identity, op: Op) -> Batch:
    count = len(found.numbers)
    if found.forms is None:
        arrays, odd = columns.build_all(found.b, found.kind, found.offset, found.length, table.columns)
    else:
        arrays, odd = forms.build_all(found.fields, found.forms, table.columns)
    image = Image.KEY if op == Op.DELETE else Image.NONE
    return Batch(
        table=table,
        rows=pa.RecordBatch.from_arrays(arrays, schema=table.arrow) if arrays else columns.no_columns(count),
        op=cut(_filled, count, int(op), _BYTE),
        position=cut(_filled, count, identity.position, _WHOLE),
        ordinal=pa.array(identity.base + found.numbers),
        xid=cut(_filled, count, 0, _WHOLE),
        committed_at=cut(_filled, count, identity.read_at, _MOMENT),
        unchanged=(None,) * len(table.columns),
        image=cut(_filled, count, int(image), _BYTE),
        odd=odd,
    )


def _filled(count: int, value: int, kind: pa.DataType) -> pa.Array:
    return pa.array(np.full(count, value, np.uint8 if kind == _BYTE else np.int64)).view(kind)
