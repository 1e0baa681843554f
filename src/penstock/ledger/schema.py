"""The ledger's tables, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Index, Integer, LargeBinary, MetaData, String, Table, Text

HEAD = "0004"
"""The newest migration."""

metadata = MetaData()

flows = Table(
    "flows",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("identity", String(64), nullable=False),
    Column("definition", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
    Column("updated_at", BigInteger, nullable=False),
    Column("memory", Text),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("destination", String(63), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("removed_at", BigInteger),
    ForeignKeyConstraint(["flow"], ["flows.name"]),
)

epochs = Table(
    "epochs",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("destination", String(63), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("source", String(64), nullable=False),
    Column("after", BigInteger, nullable=False),
    Column("upto", BigInteger, nullable=False),
    Column("buckets", Integer, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("changes", BigInteger, nullable=False),
    Column("planned_at", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    ForeignKeyConstraint(["flow"], ["flows.name"]),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("flow", String(63), nullable=False),
    Column("destination", String(63), nullable=False),
    Column("schema_name", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("row_key", Text, nullable=False),
    Column("row_keys", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("ordinal", BigInteger, nullable=False),
    Column("op", String(16), nullable=False),
    Column("code", String(63), nullable=False),
    Column("reason", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("epoch", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["flow"], ["flows.name"]),
    Index(
        "dead_letters_identity",
        *("flow", "destination", "position", "ordinal", "schema_name", "table_name", "op"),
        unique=True,
    ),
    sqlite_autoincrement=True,
)

leases = Table(
    "leases",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("machine", String(128), nullable=False),
    Column("taken_at", BigInteger, nullable=False),
    Column("renewals", BigInteger, nullable=False),
    Column("deadline", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

wishes = Table(
    "wishes",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("who", String(255), nullable=False),
    Column("why", Text),
    Column("at", BigInteger, nullable=False),
    Column("reloads", BigInteger, nullable=False),
)

flow_events = Table(
    "flow_events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("flow", String(63), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("event", String(32), nullable=False),
    Column("who", String(255), nullable=False),
    Column("why", Text),
    Column("generation", BigInteger),
    Index("flow_events_by_flow", "flow", "id"),
)
