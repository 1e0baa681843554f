"""Numbers of events that are never given twice, also in a SQLite file of which the newest events were deleted."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0012."""
    if op.get_bind().dialect.name == "sqlite":
        # SQLite can only make the table anew; what stands in it sets the number that comes next.
        with op.batch_alter_table("flow_events", recreate="always", table_kwargs={"sqlite_autoincrement": True}):
            pass
