"""What was last known of a flow's source."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0001."""
    op.add_column("flows", sa.Column("memory", sa.Text))
