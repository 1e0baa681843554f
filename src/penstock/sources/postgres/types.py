"""PostgreSQL types: which Arrow type holds a column, and the type's name as the server writes it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from psycopg import postgres as _postgres

BOOL: Final = 16
BYTEA: Final = 17
INT8: Final = 20
INT2: Final = 21
INT4: Final = 23
OID: Final = 26
XID: Final = 28
CID: Final = 29
FLOAT4: Final = 700
FLOAT8: Final = 701
MONEY: Final = 790
BPCHAR: Final = 1042
VARCHAR: Final = 1043
DATE: Final = 1082
TIME: Final = 1083
TIMESTAMP: Final = 1114
TIMESTAMPTZ: Final = 1184
NUMERIC: Final = 1700
XID8: Final = 5069

FIRST_CUSTOM: Final = 16384
"""Oids from here on are given out in each database; what they mean, only its catalogue says."""

_PLAIN: Final[dict[int, pa.DataType]] = {
    BOOL: pa.bool_(),
    BYTEA: pa.binary(),
    INT8: pa.int64(),
    INT2: pa.int16(),
    INT4: pa.int32(),
    OID: pa.uint32(),
    XID: pa.uint32(),
    CID: pa.uint32(),
    XID8: pa.uint64(),
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    # 64 bits of hundredths, as the pinned lc_monetary writes them.
    MONEY: pa.decimal128(19, 2),
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
        return _decimal(numeric_shape(typmod))
    return _PLAIN.get(oid, pa.string())


def _decimal(shape: tuple[int, int] | None) -> pa.DataType:
    if shape is None:
        return pa.string()
    # Scales below 0 and above the precision exist from 15 on; digits before or behind make an ordinary decimal of them.
    precision, scale = shape[0] - min(shape[1], 0), max(shape[1], 0)
    precision = max(precision, scale)
    return pa.decimal128(precision, scale) if precision <= MAX_DECIMAL else pa.string()


def native_name(oid: int, typmod: int) -> str:
    """The type's name as far as it is known without the server."""
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
