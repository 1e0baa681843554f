"""Definitions of flows with their revisions, keys of creations, tokens, and the record of who did what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From 0008."""
    op.create_table(
        "definitions",
        sa.Column("flow", sa.String(63), primary_key=True),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String(255), nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("updated_by", sa.String(255), nullable=False),
    )
    op.create_table(
        "definition_revisions",
        sa.Column("flow", sa.String(63), primary_key=True),
        sa.Column("revision", sa.BigInteger, primary_key=True),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("why", sa.Text),
    )
    op.create_table(
        "creation_keys",
        sa.Column("who", sa.String(255), primary_key=True),
        sa.Column("creation_key", sa.String(255), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("flow", sa.String(63), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String(255), nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("action", sa.String(63), nullable=False),
        sa.Column("flow", sa.String(63)),
        sa.Column("outcome", sa.String(63), nullable=False),
        sa.Column("detail", sa.Text),
        sqlite_autoincrement=True,
    )
