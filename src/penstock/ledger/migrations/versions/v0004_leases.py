"""Leases, what operators want of a flow, its history, and destinations that were removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0003."""
    op.create_table(
        "leases",
        sa.Column("flow", sa.String(63), primary_key=True),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("machine", sa.String(128), nullable=False),
        sa.Column("taken_at", sa.BigInteger, nullable=False),
        sa.Column("renewals", sa.BigInteger, nullable=False),
        sa.Column("deadline", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "wishes",
        sa.Column("flow", sa.String(63), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("why", sa.Text),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("reloads", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "flow_events",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("flow", sa.String(63), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("why", sa.Text),
        sa.Column("generation", sa.BigInteger),
    )
    op.create_index("flow_events_by_flow", "flow_events", ["flow", "id"])
    op.add_column("checkpoints", sa.Column("removed_at", sa.BigInteger))
