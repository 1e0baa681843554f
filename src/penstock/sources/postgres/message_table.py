"""The table that logical messages are changes of; apart from their decoder, which needs a compiler."""

from __future__ import annotations

import pyarrow as pa

from penstock.core.schema import Column, TableSchema

# Schemas whose names begin with pg_ are the server's own, so no user's table can be called this.
TABLE = TableSchema(
    "pg_logical",
    "messages",
    (
        Column("position", pa.int64(), "bigint"),
        Column("ordinal", pa.int64(), "bigint"),
        Column("transactional", pa.bool_(), "boolean"),
        Column("prefix", pa.string(), "text"),
        Column("content", pa.binary(), "bytea"),
    ),
    ("position", "ordinal"),
    1,
    "0",
)
