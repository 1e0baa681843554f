"""Types: the DuckDB type of each column, how values travel to it, and which changes of type lose nothing."""

from __future__ import annotations

import re

import pyarrow as pa

from penstock.core.schema import Column

_PLAIN: dict[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
}
_UUID = {"ARROW:extension:name": "arrow.uuid", "ARROW:extension:metadata": ""}
_JSON = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
# Whole digits that every value of the type fits in.
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INTEGER": 10, "BIGINT": 19, "UTINYINT": 3, "USMALLINT": 5, "UINTEGER": 10, "UBIGINT": 20}
_WIDER = {
    "TINYINT": {"SMALLINT", "INTEGER", "BIGINT"},
    "SMALLINT": {"INTEGER", "BIGINT"},
    "INTEGER": {"BIGINT", "DOUBLE"},
    "UTINYINT": {"USMALLINT", "UINTEGER", "UBIGINT", "SMALLINT", "INTEGER", "BIGINT"},
    "USMALLINT": {"UINTEGER", "UBIGINT", "INTEGER", "BIGINT"},
    "UINTEGER": {"UBIGINT", "BIGINT"},
    "FLOAT": {"DOUBLE"},
}


def duckdb_type(column: Column) -> str:
    """The DuckDB type, as DuckDB itself spells it; whatever has no exact home becomes text."""
    kind = column.type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return f"DECIMAL({kind.precision},{kind.scale})"
    if _is_text(kind) and column.meaning == "uuid":
        return "UUID"
    if _is_text(kind) and column.meaning in ("json", "jsonb"):
        return "JSON"
    return "VARCHAR"


def travelling(column: Column) -> pa.Field:
    """The field under which the column's values are staged: of a type that DuckDB takes as it is.

    The lane parses UUIDs, which is parallel and eight times as fast as DuckDB's cast. JSON is not parsed again: it comes
    from a server that has checked it, and DuckDB's own check refuses text that PostgreSQL's json allows (single surrogates).
    """
    target = duckdb_type(column)
    if target == "UUID":
        return pa.field(column.name, pa.binary(16), metadata=_UUID)
    if target == "JSON":
        return pa.field(column.name, column.type, metadata=_JSON)
    if target == "VARCHAR" and not _is_text(column.type):
        return pa.field(column.name, pa.string())
    return pa.field(column.name, column.type)


def travel(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """The values as the field wants them."""
    if values.type == field.type:
        return values
    if field.type == pa.binary(16):
        # The driver asks for types only and needs no compiler.
        from penstock.destinations.duckdb.uuids import uuid_bytes

        return pa.chunked_array([uuid_bytes(chunk) for chunk in values.chunks], type=field.type)
    return values.cast(field.type)


def keeps(present: str, wanted: str) -> bool:
    """Whether a column of type `present` holds every value of type `wanted` as it is."""
    if present == wanted or present in _WIDER.get(wanted, ()):
        return True
    new = _DECIMAL.fullmatch(present)
    if new is None:
        return False
    whole, scale = int(new[1]) - int(new[2]), int(new[2])
    if wanted in _DIGITS:
        return whole >= _DIGITS[wanted]
    old = _DECIMAL.fullmatch(wanted)
    return old is not None and whole >= int(old[1]) - int(old[2]) and scale >= int(old[2])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
