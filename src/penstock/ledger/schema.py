"""The ledger's tables, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Integer, MetaData, String, Table, Text

HEAD = "0002"
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
