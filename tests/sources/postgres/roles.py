"""What tests of the source's objects share: sources, a role with few rights, and bad findings."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.finding import Finding
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database

Maker = Callable[..., PostgresSource]


def login(database: Database, role: str) -> str:
    return database.server.dsn(database.name, user=role, password="x")


def bad(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if not f.ok]
