"""PostgreSQL types: which Arrow type holds a column, and the type's name as the server writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from psycopg import postgres as _postgres

BOOL: Final = 16
BYTEA: Final = 17
INT8: Final = 20
INT2: Final = 21
INT4: Final = 23
OID: Final = 26
FLOAT4: Final = 700
FLOAT8: Final = 701
BPCHAR: Final = 1042
VARCHAR: Final = 1043
DATE: Final = 1082
TIME: Final = 1083
TIMESTAMP: Final = 1114
TIMESTAMPTZ: Final = 1184
NUMERIC: Final = 1700
UUID: Final = 2950

_PLAIN: Final[dict[int, pa.DataType]] = {
    BOOL: pa.bool_(),
    BYTEA: pa.binary(),
    INT8: pa.int64(),
    INT2: pa.int16(),
    INT4: pa.int32(),
    OID: pa.uint32(),
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    DATE: pa.date32(),
    TIME: pa.time64("us"),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}
_NAMES: Final[dict[int, str]] = {
    BOOL: "boolean",
    INT8: "bigint",
    INT2: "smallint",
    INT4: "integer",
    FLOAT4: "real",
    FLOAT8: "double precision",
    BPCHAR: "character",
    VARCHAR: "character varying",
    TIME: "time without time zone",
    TIMESTAMP: "timestamp without time zone",
    TIMESTAMPTZ: "timestamp with time zone",
}
MAX_DECIMAL: Final = 38


def numeric_shape(typmod: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric's typmod; None when the type has none. The scale may be negative."""
    if typmod < 4:
        return None
    packed = typmod - 4
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def arrow_type(oid: int, typmod: int) -> pa.DataType:
    """The Arrow type that holds the column's values; text for everything that has no type of its own here."""
    if oid == NUMERIC:
        shape = numeric_shape(typmod)
        if shape is not None and shape[0] <= MAX_DECIMAL and 0 <= shape[1] <= shape[0]:
            return pa.decimal128(*shape)
        return pa.string()
    return _PLAIN.get(oid, pa.string())


def native_name(oid: int, typmod: int, custom: Mapping[int, str] | None = None) -> str:
    """The type's name as the server writes it, with its length or precision."""
    if custom and oid in custom:
        return custom[oid]
    if oid in _NAMES:
        name = _NAMES[oid]
    else:
        known = _postgres.types.get(oid)
        if known is None:
            return f"oid {oid}"
        name = known.name if known.oid == oid else f"{known.name}[]"
    if oid == NUMERIC and (shape := numeric_shape(typmod)):
        return f"numeric({shape[0]},{shape[1]})"
    if oid in (BPCHAR, VARCHAR) and typmod >= 4:
        return f"{name}({typmod - 4})"
    return name
