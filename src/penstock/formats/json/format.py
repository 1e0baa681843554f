"""JSON: one object per change, as lines of a file or as records, exact in every value.

`before` and `after` hold only the columns that are known, so null means NULL and a missing name means not known. `key`
names the row: the new key of an update, the old key of a delete, null for a truncate or a table without a key.
`read_later` stands only where a value was read from the source after the change, and names such columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Image, Odd, Op
from penstock.core.schema import TableSchema
from penstock.formats.base import FileFormat, FileWriter, RecordFormat
from penstock.formats.json import JsonOptions, values
from penstock.formats.json.values import positions_text, to_text
from penstock.formats.kernels import event_id
from penstock.formats.kernels.event_id import event_ids
from penstock.formats.layout import OP_NAMES, without_leaves

_OPS = pa.array([OP_NAMES.get(Op(code)) if code else None for code in range(len(Op) + 1)], pa.large_string())
_EMPTY, _COMMA = pa.scalar("", pa.large_string()), pa.scalar(",", pa.large_string())

Piece = Any
"""A stretch of every line: a `str` that is the same in all, or an array with one text per line."""


class JsonFormat(FileFormat, RecordFormat):
    """Changes as JSON."""

    suffix = "json"

    def __init__(self, options: JsonOptions | None = None) -> None:
        self._options = options or JsonOptions()

    def open(self, path: Path, table: TableSchema, source: str) -> JsonWriter:
        """A new file of lines."""
        return JsonWriter(path, source)

    def read(self, path: Path, table: TableSchema | None = None) -> Iterator[pa.RecordBatch]:
        """The file's changes; the lines do not say their types, so the table must be given."""
        from penstock.formats.json.decoder import decode, read_lines

        if table is None:
            raise ValueError(f"{path.name}: JSON lines can only be read with the schema of their table")
        for lines in read_lines(path):
            yield decode(lines, table)

    def encode(self, batch: Batch, source: str) -> tuple[pa.Array, pa.Array]:
        """The key object and the change object of every change."""
        batch = without_leaves(batch)
        keys = _joined(_key(batch), len(batch))
        keyed = pc.not_equal(batch.op, pa.scalar(int(Op.TRUNCATE), pa.uint8()))
        keys = pc.if_else(pc.and_(keyed, bool(batch.table.key)), keys, pa.scalar(None, keys.type))
        return keys.cast(pa.large_binary()), lines(batch, source, "").cast(pa.large_binary())

    def decode(self, values: pa.Array, table: TableSchema) -> pa.RecordBatch:
        """The changes back in the layout; ValueError when one is not of this format or this table."""
        from penstock.formats.json.decoder import decode

        return decode(values, table)


class JsonWriter(FileWriter):
    """One file of lines; the path appears with the first change, at the latest at `close`."""

    def __init__(self, path: Path, source: str) -> None:
        self._path, self._source = path, source
        self._sink: Any = None
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes in the file so far."""
        return self._size

    @property
    def buffered(self) -> int:
        """Nothing waits: lines go to the file at once."""
        return 0

    def write(self, batch: Batch) -> None:
        """Appends a line per change."""
        self.flush()
        made = lines(without_leaves(batch), self._source, "\n")
        if len(made):
            self._size += self._sink.write(made.buffers()[2])

    def flush(self) -> None:
        """Begins the file; there is nothing that waits."""
        if self._sink is None:
            self._sink = pa.OSFile(str(self._path), "wb")

    def close(self) -> None:
        """Ends the file."""
        self.flush()
        self._sink.close()


def lines(batch: Batch, source: str, end: str) -> pa.Array:
    """One object per change of a batch without LEAVE rows, followed by `end`."""
    table = batch.table
    op = batch.op.to_numpy(zero_copy_only=False)
    pieces: list[Piece] = [
        '{"op":"',
        pc.take(_OPS, batch.op),
        f'","schema":{json.dumps(table.schema, ensure_ascii=False)},"table":{json.dumps(table.name, ensure_ascii=False)},"key":',
        *(_key(batch) if table.key else ["null"]),
        ',"before":',
        *_before(batch, op),
        ',"after":',
        *_after(batch, op),
        ',"unchanged":[',
        *_names(batch, batch.unchanged, op)[0],
        "]",
        *_read_later(batch, op),
        ',"position":',
        positions_text(batch.position),
        ',"ordinal":',
        to_text(batch.ordinal),
        ',"event_id":"',
        event_ids(source, batch.position, batch.ordinal).cast(pa.large_string()),
        '","committed_at":',
        to_text(batch.committed_at),
        ',"xid":',
        to_text(batch.xid),
        f',"schema_version":{table.version}}}{end}',
    ]
    return _joined(pieces, len(batch))


def _joined(pieces: Sequence[Piece], count: int) -> pa.Array:
    merged: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    parts = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in merged]
    if not any(isinstance(part, pa.Array) for part in parts):
        return pa.array([parts[0].as_py()] * count, pa.large_string())
    return pc.binary_join_element_wise(*parts, _EMPTY)


def _named(name: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}:"


def key_texts(table: TableSchema, rows: pa.RecordBatch, odd: Mapping[str, Odd]) -> pa.Array:
    """The key object of every row as text, the same for equal keys; a value that is odd stands there by its own text."""
    cells = []
    for index in table.key_indexes:
        values = rows.column(index)
        if pa.types.is_floating(values.type):
            # -0.0 and 0.0 are one key for the source.
            values = pc.add(values, pa.scalar(0.0, values.type))
        texts = to_text(values)
        strange = odd.get(table.columns[index].name)
        if strange is not None and len(strange.rows):
            there = pc.is_in(pa.array(range(len(values)), strange.rows.type), value_set=strange.rows)
            texts = pc.replace_with_mask(texts, there, to_text(strange.texts))
        cells.append(texts)
    return _joined(_key_object(table, cells), rows.num_rows)


def _key_object(table: TableSchema, cells: Sequence[pa.Array]) -> list[Piece]:
    pieces: list[Piece] = []
    for place, texts in enumerate(cells):
        pieces += [("," if place else "{") + _named(table.key[place]), texts]
    return [*pieces, "}"]


def _key(batch: Batch) -> list[Piece]:
    """The key object; null for a truncate."""
    pieces = _key_object(batch.table, [to_text(batch.rows.column(index)) for index in batch.table.key_indexes])
    return _only(pc.not_equal(batch.op, pa.scalar(int(Op.TRUNCATE), pa.uint8())), pieces)


def _after(batch: Batch, op: Any) -> list[Piece]:
    present = pa.array((op != Op.DELETE) & (op != Op.TRUNCATE))
    return _only(present, _object(batch.table, batch.rows, batch.unchanged))


def _before(batch: Batch, op: Any) -> list[Piece]:
    """The old row as far as it is known: of deletes in the row itself, of updates beside it."""
    image = batch.image.to_numpy(zero_copy_only=False)
    deleted = op == Op.DELETE
    known = (image != Image.NONE) & (deleted | (op == Op.UPDATE) | (op == Op.ENTER))
    if batch.before is None:
        known &= deleted
    if not known.any():
        return ["null"]
    rows = batch.rows
    if batch.before is not None:
        chosen = [pc.if_else(pa.array(deleted), a, b) for a, b in zip(rows.columns, batch.before.columns, strict=True)]
        rows = pa.RecordBatch.from_arrays(chosen, schema=rows.schema)
    key_only = pa.array(image == Image.KEY)
    indexes = batch.table.key_indexes
    unknown = tuple(None if i in indexes else key_only for i in range(rows.num_columns)) if pc.any(key_only).as_py() else ()
    return _only(pa.array(known), _object(batch.table, rows, unknown or (None,) * rows.num_columns))


def _object(table: TableSchema, rows: pa.RecordBatch, unknown: Sequence[pa.Array | None]) -> list[Piece]:
    """An object with the columns that are known."""
    pieces: list[Piece] = ["{"]
    begun: Any = False
    for column, cells, missing in zip(table.columns, rows.columns, unknown, strict=True):
        comma: Piece = "" if begun is False else "," if begun is True else pc.if_else(begun, _COMMA, _EMPTY)
        text = to_text(cells)
        if missing is None:
            pieces += [comma, _named(column.name), text]
            begun = True
        else:
            pieces.append(pc.if_else(missing, _EMPTY, _joined([comma, _named(column.name), text], len(cells))))
            known = pc.invert(missing)
            begun = known if begun is False else True if begun is True else pc.or_(begun, known)
    return [*pieces, "}"]


def _read_later(batch: Batch, op: Any) -> list[Piece]:
    """The names of the columns whose values may be newer than the change, where there are such."""
    pieces, marked = _names(batch, batch.read_later, op) if batch.read_later else ([], None)
    if marked is None:
        return []
    return [pc.if_else(marked, _joined([',"read_later":[', *pieces, "]"], len(batch)), _EMPTY)]


def _names(batch: Batch, masks: Sequence[pa.Array | None], op: Any) -> tuple[list[Piece], pa.Array | None]:
    """The names of a new row's marked columns, and which rows have any."""
    pieces: list[Piece] = []
    begun: Any = None
    new = pa.array((op != Op.DELETE) & (op != Op.TRUNCATE))
    for column, missing in zip(batch.table.columns, masks, strict=True):
        if missing is not None:
            missing = pc.and_(missing, new)
            name = pa.scalar(json.dumps(column.name, ensure_ascii=False), pa.large_string())
            later = pa.scalar(f",{name.as_py()}", pa.large_string())
            text = name if begun is None else pc.if_else(begun, later, name)
            pieces.append(pc.if_else(missing, text, _EMPTY))
            begun = missing if begun is None else pc.or_(begun, missing)
    return pieces, begun


def _only(present: pa.Array, pieces: list[Piece]) -> list[Piece]:
    """The pieces where they are present, null elsewhere."""
    if pc.all(present, min_count=0).as_py():
        return pieces
    return [pc.if_else(present, _joined(pieces, len(present)), pa.scalar("null", pa.large_string()))]


def warm() -> None:
    """Compiles or loads the kernels that writing needs."""
    event_id.warm()
    values.warm()
