"""Who deletes a flow, from before anything of it goes until all of it is gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0010."""
    op.add_column("flows", sa.Column("deleting", sa.String(255)))
