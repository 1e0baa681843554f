"""Loads, their chunks, what destinations have of them, and the work of epochs that take them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0006."""
    op.create_table(
        "loads",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("flow", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("wish", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("snapshot", sa.Text),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("low", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("loads_by_flow", "loads", ["flow", "id"])
    op.create_table(
        "load_tables",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("load_id", sa.Integer, sa.ForeignKey("loads.id"), nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        # A definition is remembered by its number.
        sqlite_autoincrement=True,
    )
    op.create_table(
        "load_chunks",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("load_id", sa.Integer, sa.ForeignKey("loads.id"), nullable=False),
        sa.Column("schema_name", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("chunk_rows", sa.BigInteger, nullable=False),
        sa.Column("chunk_bytes", sa.BigInteger, nullable=False),
        sa.Column("snapshot", sa.Text),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("low", sa.BigInteger, nullable=False),
        sa.Column("read_at", sa.BigInteger, nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        # A chunk's number enters the identity of its rows, and is never another chunk's.
        sqlite_autoincrement=True,
    )
    op.create_index("load_chunks_by_load", "load_chunks", ["load_id", "id"])
    op.create_table(
        "load_deliveries",
        sa.Column("chunk_id", sa.Integer, sa.ForeignKey("load_chunks.id"), primary_key=True),
        sa.Column("destination", sa.String(63), primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "load_entries",
        sa.Column("flow", sa.String(63), primary_key=True),
        sa.Column("destination", sa.String(63), primary_key=True),
        sa.Column("schema_name", sa.String(63), primary_key=True),
        sa.Column("table_name", sa.String(63), primary_key=True),
        sa.Column("load_id", sa.Integer, sa.ForeignKey("loads.id"), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("snapshot", sa.Text),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("cursor_at", sa.BigInteger, nullable=False),
    )
    op.add_column("epochs", sa.Column("work", sa.Text))
