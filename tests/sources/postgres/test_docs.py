"""The SQL of docs/postgres.md does what the page says, on each major version."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database
from tests.sources.postgres.roles import bad

PAGE = Path(__file__).parents[3] / "docs" / "postgres.md"


def test_what_a_dba_is_told_to_make_is_all_that_a_flow_needs(each_database: Database) -> None:
    database, role = each_database, f"r_{each_database.name}"
    prepared, recorded = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE customers (id int PRIMARY KEY)")
    slot = f"s_{database.name}"

    def follow(block: str) -> None:
        # Roles and slots belong to the whole server, where other tests have theirs.
        block = re.sub(r"\b(ROLE|TO|AUTHORIZATION) penstock\b", rf"\1 {role}", block)
        for statement in filter(str.strip, block.replace("slot('penstock_shop'", f"slot('{slot}'").split(";\n")):
            database.execute(statement)

    follow(prepared)
    dsn = database.server.dsn(database.name, user=role, password="secret")
    source = PostgresSource("shop", PostgresOptions(dsn=dsn, slot=slot, create_slot=False, ensure_publication=False))
    try:
        source.prepare(None)
        findings = source.check()
        assert bad(findings) == [] and [f.subject for f in findings if f.remedy] == ["state table"]
        assert [t.name for t in source.discover()] == ["customers", "orders"]
        follow(recorded)
        assert not any(f.remedy for f in source.check())
    finally:
        source.close()
        database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
