"""`penstock doctor` against real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.app import run
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.source import PostgresSource
from tests.conftest import Database

Capture = pytest.CaptureFixture[str]


def flow(tmp_path: Path, dsn: str, *destinations: dict[str, Any], **options: Any) -> str:
    raw = {
        "name": "shop",
        "source": {"type": "postgres", "options": {"dsn": dsn, **options}},
        "destinations": list(destinations) or [{"name": "log", "type": "files", "options": {"path": str(tmp_path / "log")}}],
    }
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump(raw))
    return str(path)


def doctor(file: str, tmp_path: Path, *more: str) -> int:
    return run(["doctor", "--flow", file, "--state", str(tmp_path / "state"), *more])


def test_a_sound_flow_is_all_ticks(tmp_path: Path, database: Database, capsys: Capture) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    assert doctor(flow(tmp_path, database.dsn), tmp_path) == 0
    shown = capsys.readouterr().out
    assert "✓" in shown and "✗" not in shown and "nothing stands in the way" in shown
    assert not (tmp_path / "state").exists() and not (tmp_path / "log").exists()


def test_everything_that_is_wrong_is_listed_with_its_remedy(tmp_path: Path, database: Database, capsys: Capture) -> None:
    database.execute('CREATE TABLE "no key" (v int); CREATE TABLE a (id int PRIMARY KEY)')
    (tmp_path / "file").write_text("")
    destinations = [
        {"name": "log", "type": "files", "options": {"path": str(tmp_path / "file" / "log")}},
        {"name": "warehouse", "type": "duckdb", "options": {"path": str(tmp_path / "shop.duckdb")}},
    ]
    assert doctor(flow(tmp_path, database.dsn, *destinations), tmp_path, "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    wrong = {(g["title"].split()[0], f["code"]) for g in answer["groups"] for f in g["findings"] if not f["ok"]}
    assert wrong == {
        ("source", "identity_missing"),
        ("destination", "destination_unwritable"),
        ("destination", "table_without_key"),
    }
    remedies = [f["remedy"] for g in answer["groups"] for f in g["findings"] if not f["ok"]]
    assert all(remedies) and any('"public"."no key"' in r for r in remedies)


def test_a_key_less_table_is_no_trouble_where_it_is_left_out(tmp_path: Path, database: Database, capsys: Capture) -> None:
    database.execute("CREATE TABLE nokey (v int); ALTER TABLE nokey REPLICA IDENTITY FULL; CREATE TABLE a (id int PRIMARY KEY)")
    options = {"path": str(tmp_path / "shop.duckdb"), "exclude": ["nokey"]}
    assert doctor(flow(tmp_path, database.dsn, {"name": "w", "type": "duckdb", "options": options}), tmp_path) == 0
    assert "✗" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trouble", "code"),
    [("password", "source_refused"), ("database", "source_database_missing"), ("host", "source_unreachable")],
)
def test_a_source_that_cannot_be_reached_is_one_line_with_a_remedy(
    tmp_path: Path, database: Database, capsys: Capture, trouble: str, code: str
) -> None:
    dsn = {
        "password": database.server.dsn(database.name, password="hush"),
        "database": database.server.dsn("nowhere"),
        "host": "postgresql://u:hush@127.0.0.1:1/d",
    }[trouble]
    assert doctor(flow(tmp_path, dsn), tmp_path) == 1
    shown = capsys.readouterr().out
    assert shown.count("✗") == 1 and f"[{code}]" in shown and "→" in shown and "hush" not in shown


def test_control_characters_in_names_do_not_reach_the_terminal(tmp_path: Path, database: Database, capsys: Capture) -> None:
    database.execute('CREATE TABLE U&"a\\001B[31m\\000Ab" (id int PRIMARY KEY)')
    assert doctor(flow(tmp_path, database.dsn), tmp_path) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "a\\x1b[31m\\nb" in shown


def test_a_flow_that_runs_elsewhere_is_refused_where_its_references_are_not_set(tmp_path: Path, capsys: Capture) -> None:
    assert doctor(flow(tmp_path, "${env:PENSTOCK_TEST_UNSET}"), tmp_path) == 2
    assert "PENSTOCK_TEST_UNSET" in capsys.readouterr().err


def test_doctor_leaves_the_server_as_it_was(tmp_path: Path, database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    doctor(flow(tmp_path, database.dsn), tmp_path)
    assert database.rows("SELECT 1 FROM pg_publication") == []
    source = PostgresSource("shop", PostgresOptions(dsn=database.dsn, slot=f"s_{database.name}"))
    source.prepare(None)
    source.close()
