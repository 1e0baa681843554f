"""Columns of every type that a source gives, and values that formats find hard."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.core.schema import TableSchema
from tests.batches import table

_MICROS = st.integers(-(2**63) + 1, 2**63 - 1)

KINDS: dict[str, pa.DataType | tuple[pa.DataType, str]] = {
    "boolean": pa.bool_(),
    "small": pa.int16(),
    "whole": pa.int32(),
    "big": pa.int64(),
    "oid": (pa.uint32(), "oid"),
    "xid8": (pa.uint64(), "xid8"),
    "real": pa.float32(),
    "double": pa.float64(),
    "text": pa.string(),
    "long_text": (pa.large_string(), "text"),
    "uuid": (pa.string(), "uuid"),
    "json": (pa.string(), "jsonb"),
    "bytes": pa.binary(),
    "money": (pa.decimal128(12, 2), "numeric(12,2)"),
    "fine": (pa.decimal128(38, 38), "numeric(38,38)"),
    "huge": (pa.decimal128(38, 0), "numeric(38,0)"),
    "wide": (pa.decimal256(70, 10), "numeric(70,10)"),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
}
EVERY: TableSchema = table({"id": pa.int64(), **KINDS})

HARD: dict[str, list[Any]] = {
    "boolean": [True, False],
    "small": [-32768, 32767, 0],
    "whole": [-(2**31), 2**31 - 1],
    "big": [-(2**63), 2**63 - 1, 1550166368505037572],
    "oid": [0, 4_000_000_000],
    "xid8": [0, 2**64 - 1],
    "real": [3.3, float("nan"), float("inf"), float("-inf"), -0.0, 1e-45, -1.1111111e30],
    "double": [0.1 + 0.2, float("nan"), float("inf"), float("-inf"), -0.0, 1e308, 5e-324, 1234567890.1234567],
    "text": ["", "null", "\\N", 'q"uo\\te', "tab\tnew\nline\r\b\f", "\x00\x01\x1f\x7f", "櫻花", "🎉", "\u2028"],
    "long_text": ["", "a" * 100],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "json": ["null", '{"a": 1.10, "a": 2}', '{"t": "\\ud83d\\u200b\\ude14"}', '{"n": 1' + "0" * 40 + "}"],
    "bytes": [b"", b"\x00", b"\x01\x02\x03", b"\xff" * 4, bytes(range(256))],
    "money": [Decimal("0.00"), Decimal("-0.01"), Decimal("9999999999.99"), Decimal("-9999999999.99")],
    "fine": [Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1"), Decimal(0)],
    "huge": [Decimal("9" * 38), Decimal("-" + "9" * 38)],
    "wide": [Decimal("9" * 60 + "." + "9" * 10), Decimal("-1.5")],
    "date": [dt.date(1582, 10, 10), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)],
    "time": [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(0, 0, 0, 249)],
    "timestamp": [dt.datetime(1936, 10, 25, 22, 10, 12, 608000), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "instant": [dt.datetime(2016, 11, 4, 11, 51, 30, 123456, tzinfo=dt.UTC)],
}

STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "small": st.integers(-(2**15), 2**15 - 1),
    "whole": st.integers(-(2**31), 2**31 - 1),
    "big": _MICROS,
    "oid": st.integers(0, 2**32 - 1),
    "xid8": st.integers(0, 2**64 - 1),
    "real": st.floats(width=32),
    "double": st.floats(),
    "text": st.text(),
    "long_text": st.text(),
    "uuid": st.uuids().map(str),
    "json": st.text(),
    "bytes": st.binary(),
    "money": st.decimals(-9999999999, 9999999999, places=2),
    "fine": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-38")),
    "huge": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    "wide": st.integers(-(10**70) + 1, 10**70 - 1).map(lambda n: Decimal(f"{n}E-10")),
    "date": st.integers(-(2**31), 2**31 - 1),
    "time": st.integers(0, 86_400_000_000 - 1),
    "timestamp": _MICROS,
    "instant": _MICROS,
}


def whole(row: dict[str, Any]) -> dict[str, Any]:
    """The row with NULL for what it does not have."""
    return {**dict.fromkeys(KINDS), **row}


def rows() -> st.SearchStrategy[dict[str, Any]]:
    """Rows of EVERY without the key: values, NULL, and columns that the log left out."""
    return st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in STRATEGIES.items()})


def assert_identical(left: pa.Array, right: pa.Array, name: str) -> None:
    """Two arrays hold the same values: NaN is itself, and zero has its sign."""
    assert left.type == right.type, name
    kind = left.type
    if pa.types.is_struct(kind):
        assert left.is_null().equals(right.is_null()), name
        for field, a, b in zip(kind, left.flatten(), right.flatten(), strict=True):
            assert_identical(a, b, f"{name}.{field.name}")
        return
    if pa.types.is_temporal(kind):
        # Python has no dates before year 1.
        numbers = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        left, right = left.cast(numbers), right.cast(numbers)
    assert [_exactly(value) for value in left.to_pylist()] == [_exactly(value) for value in right.to_pylist()], name


def _exactly(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<d", value) if value == value else "nan"
    return value
