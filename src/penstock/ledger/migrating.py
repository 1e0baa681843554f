"""Migrations: run by whoever opens the ledger first, under a lock, in one transaction."""

from __future__ import annotations

import sqlalchemy as sa

from penstock import __version__
from penstock.errors import LedgerNewer
from penstock.ledger.backend import Backend
from penstock.ledger.schema import HEAD


def is_current(connection: sa.Connection, backend: Backend, where: str) -> bool:
    """Whether the ledger has the schema that this program writes; LedgerNewer when a newer program has been here."""
    version = backend.version(connection)
    if version is not None and version > HEAD:
        raise LedgerNewer(
            f"the ledger {where} has schema version {version}; penstock {__version__} knows versions up to {HEAD}",
            version=version,
        )
    return version == HEAD


def migrate(connection: sa.Connection, backend: Backend, where: str) -> None:
    """Brings the ledger to the newest schema; who comes second finds it done."""
    backend.lock_schema(connection)
    if is_current(connection, backend, where):
        return
    # Loaded only when there is something to do: alembic takes a third of a second to import.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "penstock.ledger:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
