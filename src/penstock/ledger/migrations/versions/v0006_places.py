"""Labels of flows, by which lists are narrowed, and where their journals lie."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0005."""
    op.create_table(
        "flow_labels",
        sa.Column("flow", sa.String(63), sa.ForeignKey("flows.name"), primary_key=True),
        sa.Column("label", sa.String(255), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.add_column("flows", sa.Column("journal", sa.Text))
    op.create_index("flow_labels_by_label", "flow_labels", ["label", "value", "flow"])
