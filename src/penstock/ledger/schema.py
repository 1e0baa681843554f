"""The ledger's tables, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Index, Integer, LargeBinary, MetaData, String, Table, Text

HEAD = "0013"
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
    Column("journal", Text),
    Column("deleting", String(255)),
)

flow_labels = Table(
    "flow_labels",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("label", String(255), primary_key=True),
    Column("value", Text, nullable=False),
    ForeignKeyConstraint(["flow"], ["flows.name"]),
    Index("flow_labels_by_label", "label", "value", "flow"),
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
    Column("part", BigInteger, nullable=False, server_default="0"),
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
    Column("after_part", BigInteger, nullable=False, server_default="0"),
    Column("upto_part", BigInteger, nullable=False, server_default="0"),
    Column("work", Text),
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

quarantines = Table(
    "quarantines",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("destination", String(63), primary_key=True),
    Column("schema_name", String(255), primary_key=True),
    Column("table_name", String(255), primary_key=True),
    Column("code", String(63), nullable=False),
    Column("reason", Text, nullable=False),
    Column("remedy", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("part", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("epoch", BigInteger),
    Column("upto", BigInteger),
    Column("upto_part", BigInteger),
    Column("passed", BigInteger, nullable=False),
    Column("counted", BigInteger),
    Column("counted_epoch", BigInteger),
    Column("since", BigInteger, nullable=False),
    ForeignKeyConstraint(["flow"], ["flows.name"]),
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
    Column("answers", BigInteger),
    Index("flow_events_by_flow", "flow", "id"),
    sqlite_autoincrement=True,
)

definitions = Table(
    "definitions",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("definition", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String(255), nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", String(255), nullable=False),
)

definition_revisions = Table(
    "definition_revisions",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("definition", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("who", String(255), nullable=False),
    Column("why", Text),
)

creation_keys = Table(
    "creation_keys",
    metadata,
    Column("who", String(255), primary_key=True),
    Column("creation_key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("flow", String(63), nullable=False),
    Column("at", BigInteger, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("role", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String(255), nullable=False),
    Column("revoked_at", BigInteger),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("who", String(255), nullable=False),
    Column("role", String(16), nullable=False),
    Column("action", String(63), nullable=False),
    Column("flow", String(63)),
    Column("outcome", String(63), nullable=False),
    Column("detail", Text),
    sqlite_autoincrement=True,
)

loads = Table(
    "loads",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("flow", String(63), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("wish", String(16), nullable=False),
    Column("reason", Text),
    Column("snapshot", Text),
    Column("position", BigInteger, nullable=False),
    Column("low", BigInteger, nullable=False),
    Column("who", String(255), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index("loads_by_flow", "flow", "id"),
    sqlite_autoincrement=True,
)

load_tables = Table(
    "load_tables",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("load_id", Integer, nullable=False),
    Column("definition", Text, nullable=False),
    ForeignKeyConstraint(["load_id"], ["loads.id"]),
    sqlite_autoincrement=True,
)

load_chunks = Table(
    "load_chunks",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("load_id", Integer, nullable=False),
    Column("schema_name", Text, nullable=False),
    Column("table_name", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("chunk_rows", BigInteger, nullable=False),
    Column("chunk_bytes", BigInteger, nullable=False),
    Column("snapshot", Text),
    Column("position", BigInteger, nullable=False),
    Column("low", BigInteger, nullable=False),
    Column("read_at", BigInteger, nullable=False),
    Column("file", Text, nullable=False),
    ForeignKeyConstraint(["load_id"], ["loads.id"]),
    Index("load_chunks_by_load", "load_id", "id"),
    sqlite_autoincrement=True,
)

load_deliveries = Table(
    "load_deliveries",
    metadata,
    Column("chunk_id", Integer, primary_key=True),
    Column("destination", String(63), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    ForeignKeyConstraint(["chunk_id"], ["load_chunks.id"]),
)

load_sums = Table(
    "load_sums",
    metadata,
    Column("load_id", Integer, primary_key=True),
    Column("schema_name", String(255), primary_key=True),
    Column("table_name", String(255), primary_key=True),
    Column("destination", String(63), primary_key=True),
    Column("chunks", BigInteger, nullable=False),
    Column("chunk_rows", BigInteger, nullable=False),
    Column("chunk_bytes", BigInteger, nullable=False),
    Column("read_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["load_id"], ["loads.id"]),
)

load_entries = Table(
    "load_entries",
    metadata,
    Column("flow", String(63), primary_key=True),
    Column("destination", String(63), primary_key=True),
    Column("schema_name", String(63), primary_key=True),
    Column("table_name", String(63), primary_key=True),
    Column("load_id", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("snapshot", Text),
    Column("until", BigInteger, nullable=False),
    Column("cursor_at", BigInteger, nullable=False),
    ForeignKeyConstraint(["load_id"], ["loads.id"]),
)
