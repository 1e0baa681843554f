"""How the conformance suite makes and reads a postgres destination: a server for the process, a database for each home."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from penstock.core.schema import TableSchema
from penstock.embedded.postgres import EmbeddedPostgres

# By this a process that a test starts finds the server of its parent.
_ADDRESS = "PENSTOCK_TEST_TARGET"


def options(home: Path) -> dict[str, Any]:
    return {"dsn": dsn(home)}


@contextmanager
def around(home: Path) -> Iterator[str]:
    """The server runs as long as the process, and the home's database is there."""
    yield dsn(home)


def rows(home: Path, table: TableSchema) -> list[dict[str, Any]]:
    with psycopg.connect(dsn(home), row_factory=dict_row) as connection:
        return connection.execute(SQL("SELECT * FROM {}").format(Identifier(table.schema, table.name))).fetchall()


def asked(home: Path, sql: str) -> list[tuple[Any, ...]]:
    """What a query in the home's database gives."""
    with psycopg.connect(dsn(home), autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


@cache
def dsn(home: Path) -> str:
    """The home's own database, made when it is first asked for."""
    name = f"d_{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
    base = _address()
    with psycopg.connect(base, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            connection.execute(SQL("CREATE DATABASE {} STRATEGY file_copy").format(Identifier(name)))
    return base.rpartition("/")[0] + f"/{name}"


@cache
def _address() -> str:
    if _ADDRESS not in os.environ:
        server = EmbeddedPostgres(settings={"fsync": "off", "full_page_writes": "off", "max_connections": "50"}).start()
        os.environ[_ADDRESS] = server.dsn()
        _SERVERS.append(server)
    return os.environ[_ADDRESS]


_SERVERS: list[EmbeddedPostgres] = []
