"""Tables that one destination passes over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0007."""
    op.create_table(
        "quarantines",
        sa.Column("flow", sa.String(63), primary_key=True),
        sa.Column("destination", sa.String(63), primary_key=True),
        sa.Column("schema_name", sa.String(255), primary_key=True),
        sa.Column("table_name", sa.String(255), primary_key=True),
        sa.Column("code", sa.String(63), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("remedy", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("part", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("upto", sa.BigInteger),
        sa.Column("upto_part", sa.BigInteger),
        sa.Column("passed", sa.BigInteger, nullable=False),
        sa.Column("counted", sa.BigInteger),
        sa.Column("counted_epoch", sa.BigInteger),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["flow"], ["flows.name"]),
    )
