"""Migrations of the ledger, run by alembic when a ledger is older than this version."""
