"""Flows, checkpoints and epochs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From nothing."""
    op.create_table(
        "flows",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "checkpoints",
        sa.Column("flow", sa.String(63), sa.ForeignKey("flows.name"), primary_key=True),
        sa.Column("destination", sa.String(63), primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "epochs",
        sa.Column("flow", sa.String(63), sa.ForeignKey("flows.name"), primary_key=True),
        sa.Column("destination", sa.String(63), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("source", sa.String(64), nullable=False),
        sa.Column("after", sa.BigInteger, nullable=False),
        sa.Column("upto", sa.BigInteger, nullable=False),
        sa.Column("buckets", sa.Integer, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("changes", sa.BigInteger, nullable=False),
        sa.Column("planned_at", sa.BigInteger, nullable=False),
        sa.Column("closed_at", sa.BigInteger),
    )
