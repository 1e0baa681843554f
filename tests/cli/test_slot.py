"""`penstock slot` against a real server."""

from __future__ import annotations

import io

import pytest

from tests.cli.objects import Commands
from tests.conftest import Database


@pytest.fixture
def made(database: Database, commands: Commands) -> Commands:
    """The flow's publication and slot, as a start would make them."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION penstock_shop FOR TABLE a")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", commands.slot)
    return commands


def exists(commands: Commands, name: str = "") -> bool:
    return bool(commands.database.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", name or commands.slot))


def test_a_slot_that_is_not_there_is_said(commands: Commands) -> None:
    assert "does not exist" in commands.slots("list")[1]
    for command in ("show", "drop"):
        code, shown = commands.slots(command, *(["--yes"] if command == "drop" else []))
        assert code == 1 and "slot_missing" in shown and "penstock slot list" in shown


def test_show_says_all_that_the_server_knows(database: Database, made: Commands) -> None:
    database.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 100000))")
    answer = made.json("slot", "show", "--flow", "FLOW")
    assert answer["own"] and answer["plugin"] == "pgoutput" and answer["database"] == database.name and not answer["active"]
    assert answer["lag_bytes"] >= 100000 and answer["retained_bytes"] >= answer["lag_bytes"] and answer["two_phase"]
    assert answer["status"] == "reserved" and answer["failover"] in (False, None) and "/" in answer["confirmed"]
    code, shown = made.slots("show")
    assert code == 0
    for word in ("confirmed", "restart", "lag", "WAL retained", "safe_wal_size", "no limit is set", "failover", "invalidated"):
        assert word in shown
    assert "KiB" in shown


def test_a_reader_is_named_and_keeps_the_slot_from_being_dropped(made: Commands) -> None:
    with made.reading() as pid:
        assert f"by process {pid}, penstock shop as postgres" in made.slots("show")[1]
        code, shown = made.slots("drop")
        assert code == 1 and "slot_in_use" in shown and str(pid) in shown and "SIGTERM" in shown and "Drop slot" not in shown
    assert exists(made)


def test_list_marks_the_flows_own(database: Database, made: Commands) -> None:
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"other_{database.name}")
    shown = made.slots("list")[1]
    own = next(line for line in shown.splitlines() if made.slot in line and "other" not in line)
    other = next(line for line in shown.splitlines() if f"other_{database.name}" in line)
    assert own.startswith("*") and not other.startswith("*")


def test_drop_asks_and_takes_no_for_an_answer(made: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ("n\n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        code, shown = made.slots("drop")
        assert code == 1 and "can no longer be had" in shown and exists(made)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert made.slots("drop")[0] == 0
    assert not exists(made)


def test_drop_takes_another_slot_only_by_name(database: Database, made: Commands) -> None:
    other = f"other_{database.name}"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", other)
    answer = made.json("slot", "drop", "--flow", "FLOW", "--yes", "--name", other)
    assert answer["dropped"] == other and "can no longer be had" in answer["lost"]
    assert exists(made) and not exists(made, other)


def test_a_limited_role_sees_the_slot(database: Database, role: str, made: Commands) -> None:
    database.execute(f"ALTER ROLE {role} REPLICATION")
    made.write(dsn=database.server.dsn(database.name, user=role, password="x"))
    with made.reading() as pid:
        assert f"by process {pid}" in made.slots("show")[1]
    assert made.slots("list")[0] == 0
