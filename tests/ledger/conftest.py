"""The ledger under test, in a SQLite file and on a PostgreSQL server in turn."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Ledger
from penstock.ledger.postgres import SCHEMA
from penstock.ledger.schema import metadata
from tests.conftest import Database


@pytest.fixture(scope="session")
def ledger_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database with an empty ledger, migrated once; tests use it one after the other."""
    name = f"ledger_{uuid.uuid4().hex[:8]}"
    postgres.run(f"create database {name}")
    made = Database(postgres, name)
    Ledger(LedgerAddress.parse(made.dsn)).close()
    yield made
    postgres.run(f"drop database {name} with (force)")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> LedgerAddress:
    """An empty ledger of each kind."""
    if request.param == "sqlite":
        return LedgerAddress(tmp_path / "ledger.db")
    database = request.getfixturevalue("ledger_database")
    tables = ", ".join(f"{SCHEMA}.{table.name}" for table in metadata.sorted_tables)
    database.execute(f"truncate {tables} restart identity")
    return LedgerAddress.parse(database.dsn)


@pytest.fixture
def new_address(address: LedgerAddress, request: pytest.FixtureRequest) -> LedgerAddress:
    """A place of each kind where there was never a ledger."""
    return address if address.path is not None else LedgerAddress.parse(request.getfixturevalue("database").dsn)


def rows(address: LedgerAddress, sql: str) -> list[tuple[Any, ...]]:
    """What a statement, run beside the ledger and committed, gives."""
    if address.path is not None:
        with contextlib.closing(sqlite3.connect(address.path, timeout=10)) as connection, connection:
            return connection.execute(sql).fetchall()
    with psycopg.connect(address.conninfo, options=f"-c search_path={SCHEMA}", autocommit=True) as server:
        cursor = server.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []
