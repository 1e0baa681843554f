"""Logical messages as events: in transactions and outside of them, in order, each once."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.postgres import assembly
from tests.conftest import Database
from tests.sources.postgres.captured import Captured


def rows(captured: Captured) -> list[tuple[str, bool, bytes]]:
    return [(r["prefix"], r["transactional"], r["content"]) for r in (e["row"] for e in captured.events("messages"))]


def flush(database: Database) -> None:
    """A message outside of transactions is not flushed by itself, and what is not flushed is not sent."""
    database.execute("create table if not exists flushes_the_log (); drop table flushes_the_log")


@pytest.fixture
def messages(database: Database, tmp_path: Path) -> Any:
    database.execute("create table a (id int primary key, v text)")
    return Captured(database, tmp_path, emit_messages=True)


def test_messages_have_their_place_among_the_changes(messages: Captured, database: Database) -> None:
    with messages.running():
        with database.connect() as c:
            c.execute("begin; insert into a values (1, 'x')")
            c.execute("select pg_logical_emit_message(true, 'outbox', 'in the transaction')")
            c.execute("insert into a values (2, 'y'); commit")
            c.execute("select pg_logical_emit_message(false, 'out', decode('00ff80', 'hex'))")
            c.execute("begin; select pg_logical_emit_message(true, 'outbox', 'never'); rollback")
            c.execute("insert into a values (3, 'z')")
        messages.drain()
    assert rows(messages) == [("outbox", True, b"in the transaction"), ("out", False, b"\x00\xff\x80")]
    changes, said = messages.events("a"), messages.events("messages")
    assert [e["id"][1] for e in changes] == [1, 3, 1]
    assert said[0]["id"] == (changes[0]["id"][0], 2)
    assert changes[1]["id"] < said[1]["id"] < changes[2]["id"]
    assert said[1]["op"] == "message" and said[1]["row"]["position"] == said[1]["id"][0]
    assert [s.last for s in messages.slices()] == sorted(s.last for s in messages.slices())


def test_a_message_outside_does_not_confirm_what_follows_it(messages: Captured, database: Database) -> None:
    """The commit's record may begin where the message's ends: to confirm the message must not skip the commit."""
    with messages.running():
        with database.connect() as one:
            one.execute("begin; insert into a values (1, 'x')")
            database.execute("select pg_logical_emit_message(false, 'out', 'early')")
            one.execute("commit")
        messages.drain()
    said, changed = messages.events("messages"), messages.events("a")
    assert said[0]["id"] < changed[0]["id"]
    # As after a crash that left only the message in the journal, and told the server so.
    shutil.rmtree(messages.directory)
    messages.prepared = dataclasses.replace(messages.prepared, start=said[0]["id"][0])
    with messages.running():
        messages.link.confirm(said[0]["id"][0])
        messages.drain()
    assert rows(messages) == [], "confirmed, and not sent again"
    assert messages.events("a") == changed


def test_own_messages_and_unwanted_ones_are_no_events(messages: Captured, database: Database, tmp_path: Path) -> None:
    with messages.running():
        database.execute("select pg_logical_emit_message(false, 'penstock.heartbeat', '')")
        database.execute("select pg_logical_emit_message(true, 'penstock.heartbeat', '')")
        database.execute("select pg_logical_emit_message(true, '', '')")
        flush(database)
        messages.drain()
    assert rows(messages) == [("", True, b"")]


def test_without_the_option_there_are_none(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key, v text)")
    captured = Captured(database, tmp_path)
    with captured.running():
        database.execute("select pg_logical_emit_message(false, 'x', 'y')")
        database.execute("insert into a values (1, 'x')")
        captured.drain()
    assert rows(captured) == [] and len(captured.events("a")) == 1
    assert all(t.name != "messages" for t in captured.source.discover())
    captured.source.close()


@pytest.mark.parametrize("transactional", ["true", "false"])
def test_a_huge_message_passes(
    messages: Captured, database: Database, monkeypatch: pytest.MonkeyPatch, transactional: str
) -> None:
    monkeypatch.setattr(assembly, "BUFFER_BYTES", 300_000)
    monkeypatch.setattr(assembly, "SLICE_BYTES", 40_000)
    monkeypatch.setattr(assembly, "HUGE_BYTES", 100_000)
    with messages.running():
        database.execute("insert into a values (1, 'before')")
        database.execute(f"select pg_logical_emit_message({transactional}, 'big', repeat('m', 2000000))")
        database.execute("insert into a values (2, 'after')")
        messages.drain()
    assert [(p, len(c)) for p, _, c in rows(messages)] == [("big", 2_000_000)]
    assert [e["row"]["id"] for e in messages.events("a")] == [1, 2]
    ids = [messages.events("a")[0]["id"], messages.events("messages")[0]["id"], messages.events("a")[1]["id"]]
    assert ids == sorted(ids)


def test_messages_of_rolled_back_savepoints_are_no_events(messages: Captured, database: Database) -> None:
    database.execute(f"alter database {database.name} set debug_logical_replication_streaming = immediate")
    with messages.running():
        with database.connect() as c:
            c.execute("begin; insert into a values (1, 'x'); select pg_logical_emit_message(true, 'in', 'kept')")
            c.execute("savepoint s; select pg_logical_emit_message(true, 'in', 'gone'); rollback to s")
            c.execute("insert into a values (2, 'y'); commit")
        messages.drain()
    assert rows(messages) == [("in", True, b"kept")]
    assert [e["id"][1] for e in messages.events("a")] == [1, 3]


def test_changes_that_replication_brought_here_can_be_left_out(database: Database, tmp_path: Path) -> None:
    database.execute("create table a (id int primary key, v text)")
    database.execute("select pg_replication_origin_create('elsewhere_' || current_database())")
    captured = Captured(database, tmp_path, origin="none")
    with captured.running():
        with database.connect() as c:
            c.execute("insert into a values (1, 'own')")
            c.execute("select pg_replication_origin_session_setup('elsewhere_' || current_database())")
            c.execute("insert into a values (2, 'brought')")
            c.execute("select pg_replication_origin_session_reset()")
            c.execute("insert into a values (3, 'own')")
        captured.drain()
    database.execute("select pg_replication_origin_drop('elsewhere_' || current_database())")
    assert [e["row"]["id"] for e in captured.events("a")] == [1, 3]
