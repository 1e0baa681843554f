"""Which question an event answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0009."""
    op.add_column("flow_events", sa.Column("answers", sa.BigInteger))
