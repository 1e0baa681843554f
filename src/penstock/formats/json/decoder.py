"""The reader of JSON changes: objects back into the columnar layout, value for value, parsed by DuckDB.

Objects may have been written again by somebody else: order of names, spacing and further names do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import TableSchema
from penstock.formats.json.values import from_text
from penstock.formats.layout import layout_schema, name_lists

# Lines of a file that are decoded together.
_BLOCK_BYTES = 16 << 20


def read_lines(path: Path) -> Iterator[pa.Array]:
    """A file's lines, block by block."""
    with open(path, "rb") as file:
        rest = b""
        while block := file.read(_BLOCK_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            if newline:
                yield _split(whole)
        if rest.strip():
            yield _split(rest)


def decode(values: pa.Array, table: TableSchema) -> pa.RecordBatch:
    """Objects of one table and version, in the layout; ValueError when one is not a change of this table."""
    fields = _Fields(values.cast(pa.large_string()))
    op = fields.text("op")
    for name, wanted in (("schema", table.schema), ("table", table.name), ("schema_version", str(table.version))):
        if not pc.all(pc.fill_null(pc.equal(fields.text(name), wanted), False), min_count=0).as_py():
            raise ValueError(f"not every change is of {table.qualified}, version {table.version}")
    deleted = pc.equal(op, "delete")
    names = [column.name for column in table.columns]
    after, before = fields.rows("after", table), fields.rows("before", table)
    known, present = fields.exists("before", names), fields.is_object("before")
    schema = layout_schema(table)
    old = _before(before, known, present, schema.field("__before").type, table)
    columns = [pc.if_else(deleted, was, row) for was, row in zip(before, after, strict=True)]
    meta = [
        op.cast(pa.string()),
        fields.position(),
        fields.number("ordinal", pa.int64()),
        fields.text("event_id").cast(pa.string()),
        from_text(fields.text("committed_at"), pa.timestamp("us", "UTC")),
        fields.number("xid", pa.int64()),
        fields.number("schema_version", pa.int32()),
        fields.names("unchanged"),
        fields.names("read_later"),
    ]
    return pa.RecordBatch.from_arrays([*meta, old, *columns], schema=schema)


class _Fields:
    """Fields of JSON objects, parsed in one go per question."""

    def __init__(self, values: pa.Array) -> None:
        self._objects = pa.table({"v": values})
        self._count = len(values)
        self._database = duckdb.connect(config={"threads": 1})
        names = ("op", "schema", "table", "event_id", "committed_at", "xid", "ordinal", "schema_version")
        self._texts = dict(zip(names, self._extracted([f"/{name}" for name in names]), strict=True))

    def text(self, name: str) -> pa.Array:
        """A field of the change itself."""
        return self._texts[name]

    def number(self, name: str, kind: pa.DataType) -> pa.Array:
        """A numeric field of the change itself."""
        return pc.cast(self._texts[name], kind)

    def position(self) -> pa.Array:
        """The position as a number."""
        return self._asked(
            "(('0x' || split_part(v ->> '/position', '/', 1))::UBIGINT * 4294967296"
            " + ('0x' || split_part(v ->> '/position', '/', 2))::UBIGINT)::BIGINT"
        )

    def names(self, name: str) -> pa.Array:
        """A field that is a list of names; empty when it is not there."""
        return self._asked(f"coalesce(from_json(v -> '/{name}', '[\"VARCHAR\"]'), [])").cast(pa.list_(pa.string()))

    def is_object(self, name: str) -> Any:
        """Where the field is an object."""
        found = self._asked(f"coalesce(json_type(v, '/{name}') = 'OBJECT', false)")
        return found.to_numpy(zero_copy_only=False)

    def exists(self, part: str, names: Sequence[str]) -> Any:
        """Which names the object has, null or not, as a matrix."""
        lists = self._asked(f"json_exists(v, {_paths(part, names)})")
        return lists.flatten().to_numpy(zero_copy_only=False).reshape(self._count, len(names))

    def rows(self, part: str, table: TableSchema) -> list[pa.Array]:
        """The table's columns out of an object, NULL where it does not have them."""
        texts = self._extracted([f"/{part}/{_pointer(column.name)}" for column in table.columns])
        columns = []
        for column, values in zip(table.columns, texts, strict=True):
            if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
                columns.append(self._bytes(values).cast(column.type))
            else:
                columns.append(from_text(values, column.type))
        return columns

    def _extracted(self, paths: Sequence[str]) -> list[pa.Array]:
        lists = self._asked(f"json_extract_string(v, [{', '.join(_quoted(path) for path in paths)}])")
        flat = lists.flatten().cast(pa.large_string())
        every = np.arange(self._count, dtype=np.int64) * len(paths)
        return [flat.take(pa.array(every + place)) for place in range(len(paths))]

    def _bytes(self, texts: pa.Array) -> pa.Array:
        penstock_texts = pa.table({"v": texts})
        found = self._database.execute("SELECT from_base64(v) AS v FROM penstock_texts").to_arrow_table()
        del penstock_texts
        return _one(found.column("v"))

    def _asked(self, expression: str) -> pa.Array:
        penstock_objects = self._objects
        try:
            found = self._database.execute(f"SELECT {expression} AS v FROM penstock_objects").to_arrow_table()
        except duckdb.Error as error:
            # DuckDB's message shows the text that it could not read, and errors never carry values.
            raise ValueError(f"not every value is a JSON object of a change ({type(error).__name__})") from None
        del penstock_objects
        return _one(found.column("v"))


def _before(rows: list[pa.Array], known: Any, present: Any, kind: pa.StructType, table: TableSchema) -> pa.Array:
    unknown = ~known
    some = present & unknown.any(axis=1)
    lists = pc.if_else(pa.array(some), name_lists(table, unknown, len(present)), pa.scalar(None, pa.list_(pa.string())))
    return pa.StructArray.from_arrays([*rows, lists], fields=list(kind), mask=pa.array(~present))


def _split(block: bytes) -> pa.Array:
    whole = pa.array([block], pa.large_binary()).view(pa.large_string())
    lines = pc.split_pattern(whole, "\n").flatten()
    return lines.filter(pc.greater(pc.binary_length(lines), 0))


def _paths(part: str, names: Sequence[str]) -> str:
    return "[" + ", ".join(_quoted(f"/{part}/{_pointer(name)}") for name in names) + "]"


def _pointer(name: str) -> str:
    """A name inside a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _one(column: pa.ChunkedArray) -> pa.Array:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else column.combine_chunks()
    )
