"""Sources on the test's database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.sources.postgres.roles import Maker


@pytest.fixture
def make(database: Database) -> Iterator[Maker]:
    """Sources of the flow `shop` on the test's database, closed afterwards."""
    made: list[PostgresSource] = []

    def source(**options: Any) -> PostgresSource:
        # Slots belong to the server, not to the database: tests that run side by side must not meet in one.
        options = {"dsn": database.dsn, "slot": f"s_{database.name}", **options}
        made.append(PostgresSource("shop", PostgresOptions(**options)))
        return made[-1]

    yield source
    for one in made:
        one.close()
