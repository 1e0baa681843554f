"""What is kept of a load that has been over for a while, in the place of its chunks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0011."""
    op.create_table(
        "load_sums",
        sa.Column("load_id", sa.Integer, sa.ForeignKey("loads.id"), primary_key=True),
        sa.Column("schema_name", sa.String(255), primary_key=True),
        sa.Column("table_name", sa.String(255), primary_key=True),
        # Empty for what was read.
        sa.Column("destination", sa.String(63), primary_key=True),
        sa.Column("chunks", sa.BigInteger, nullable=False),
        sa.Column("chunk_rows", sa.BigInteger, nullable=False),
        sa.Column("chunk_bytes", sa.BigInteger, nullable=False),
        sa.Column("read_at", sa.BigInteger, nullable=False),
    )
