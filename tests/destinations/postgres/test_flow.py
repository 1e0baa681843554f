"""A whole flow from PostgreSQL to PostgreSQL, run by a worker of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Database
from tests.destinations.postgres.test_values import second
from tests.flows import SCHEMA, FlowUnderTest, load, wait_until

TABLES = {"accounts": "id", "lines": "a, b", '"We""ird; table"': '"Id"', "steps": "n", "every": "id"}
EVERY = """
create type mood as enum ('sad', 'it''s ok');
create table every (
  id uuid primary key, m mood, tags text[], r tstzrange, j jsonb, n numeric, p numeric(9,2), d date, t time, at timestamp,
  i interval
)
"""


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """The target: it has no table and no type yet."""
    with second(database) as made:
        yield made


def texts(database: Database, table: str, key: str) -> list[Any]:
    """The rows as the server writes them."""
    return database.rows(f"select r::text from {table} r order by {key}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_under_load_are_the_same_on_both_servers(database: Database, other: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    database.execute(EVERY)
    flow = FlowUnderTest(database, tmp_path)
    definition = yaml.safe_load(flow.path.read_text())
    definition["destinations"] = [
        {"name": "copy", "type": "postgres", "options": {"dsn": other.dsn}},
        {"name": "async", "type": "postgres", "options": {"dsn": other.dsn, "schema_template": "second_{schema}"}},
    ]
    flow.path.write_text(yaml.safe_dump(definition))
    flow.make_slot()
    process = flow.start()
    try:
        with load(database, seed=8) as commits:
            database.execute(
                "insert into every select gen_random_uuid(), 'it''s ok', array['a', null, g::text], tstzrange(null, 'infinity'),"
                " jsonb_build_object('g', g), g / 7.0, 'NaN', 'infinity', '24:00', '4714-11-24 BC', g * interval '1 day'"
                " from generate_series(1, 5000) g"
            )
            wait_until(lambda: commits[0] > 300, 120, "no load")
            # Lanes may have to compile their kernels first.
            flow.wait_for_progress(240)
            database.execute("update every set n = n + 1, d = '-infinity' where n < 300; delete from every where n > 600")
        flow.wait_for_progress()
        for table, key in TABLES.items():
            expected = texts(database, table, key)
            # The load truncates this one now and then.
            assert expected or "We" in table
            for schema in ("public", "second_public"):
                assert texts(other, f"{schema}.{table}", key) == expected, (schema, table)
        held = dict(other.rows("select destination, position from penstock.positions"))
        checkpoints = flow.checkpoints()
        assert held.keys() == checkpoints.keys() == {"copy", "async"}
        assert all(held[name] <= checkpoints[name] for name in held)
        process.terminate()
        assert process.wait(30) == 0, flow.output()
        assert "Traceback" not in flow.output()
    finally:
        if process.poll() is None:
            flow.kill()
