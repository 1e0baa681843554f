"""Epochs and checkpoints that end inside of a transaction."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0004."""
    op.add_column("checkpoints", sa.Column("part", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("epochs", sa.Column("after_part", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("epochs", sa.Column("upto_part", sa.BigInteger, nullable=False, server_default="0"))
