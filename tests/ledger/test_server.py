"""The ledger's server goes and comes: what was being written counts wholly or not at all, and the next write finds it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from penstock.core.epoch import Epoch
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import LedgerUnreachable, LedgerUnusable
from penstock.ledger import postgres
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Checkpoint, Ledger
from penstock.ledger.postgres import SCHEMA
from tests.conftest import Database

BACKENDS = "from pg_stat_activity where datname = current_database() and application_name = 'penstock ledger'"


@pytest.fixture
def ledger(database: Database) -> Iterator[Ledger]:
    made = Ledger(LedgerAddress.parse(database.dsn))
    yield made
    made.close()


def begun(ledger: Ledger) -> int:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "log", 10, generation)
    return generation


def test_a_connection_that_was_lost_while_nothing_went_on_is_not_noticed(database: Database, ledger: Ledger) -> None:
    generation = begun(ledger)
    database.rows(f"select pg_terminate_backend(pid, 10000) {BACKENDS}")
    ledger.advance("shop", "log", 20, generation)
    database.rows(f"select pg_terminate_backend(pid, 10000) {BACKENDS}")
    assert ledger.checkpoint("shop", "log") == Checkpoint(20, 0)


def test_a_transaction_whose_connection_is_lost_counts_for_nothing_and_the_next_one_is_made(
    database: Database, ledger: Ledger
) -> None:
    generation = begun(ledger)

    def write() -> None:
        with ledger._fenced("shop", generation) as c:
            c.execute(sa.text("update checkpoints set position = 99"))
            database.rows(f"select pg_terminate_backend(pid, 10000) {BACKENDS}")

    with pytest.raises(LedgerUnreachable) as error:
        write()
    assert error.value.retry == "timed" and database.server.password not in str(error.value)
    assert ledger.checkpoint("shop", "log") == Checkpoint(10, 0)
    ledger.advance("shop", "log", 20, generation)
    assert ledger.checkpoint("shop", "log") == Checkpoint(20, 0)


def test_an_epoch_is_closed_and_the_next_planned_wholly_or_not_at_all_whenever_the_connection_breaks(
    database: Database, ledger: Ledger
) -> None:
    generation = begun(ledger)
    done = threading.Event()

    def breaking() -> None:
        with database.connect() as connection:
            while not done.wait(0.01):
                connection.execute(f"select pg_terminate_backend(pid) {BACKENDS}".encode())

    def epoch(number: int) -> Epoch:
        return Epoch("shop", "log", "5ec0ffee", number, number * 10, number * 10 + 10, 1, generation)

    def state() -> tuple[Checkpoint | None, list[int]]:
        while True:
            try:
                return ledger.checkpoint("shop", "log"), [e.number for e in ledger.planned("shop", "log")]
            except LedgerUnreachable:
                continue

    ledger.plan(epoch(1), 1)
    thread = threading.Thread(target=breaking)
    thread.start()
    losses = 0
    try:
        number = 1
        while losses < 10 and number < 20_000:
            try:
                ledger.close_epoch(epoch(number), generation, epoch(number + 1), 1)
                number += 1
            except LedgerUnreachable:
                losses += 1
                reached, planned = state()
                assert reached is not None and reached.epoch in (number - 1, number)
                assert reached.position == 10 * reached.epoch + 10 and planned == [reached.epoch + 1]
                number = reached.epoch + 1
    finally:
        done.set()
        thread.join()
    assert losses >= 10


def test_connections_that_are_lost_as_soon_as_they_are_made_are_an_error_that_passes(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(ledger)
    with monkeypatch.context() as lost:
        lost.setattr(postgres, "_is_readable", lambda socket: True)
        with pytest.raises(LedgerUnreachable):
            ledger.checkpoint("shop", "log")
    assert ledger.checkpoint("shop", "log") is not None


@pytest.mark.slow
def test_a_server_that_is_down_is_an_error_that_passes_and_is_found_again(penstock_home: object) -> None:
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        ledger = Ledger(LedgerAddress.parse(server.dsn()))
        generation = begun(ledger)
        server.kill()
        with pytest.raises(LedgerUnreachable) as error:
            ledger.advance("shop", "log", 20, generation)
        assert error.value.retry == "timed" and server.password not in f"{error.value} {error.value.remedy}"
        with pytest.raises(LedgerUnreachable):
            ledger.checkpoint("shop", "log")
        with pytest.raises(LedgerUnreachable):
            Ledger(LedgerAddress.parse(server.dsn()))
        server.start()
        ledger.advance("shop", "log", 20, generation)
        assert ledger.checkpoint("shop", "log") == Checkpoint(20, 0)
        ledger.close()


def test_what_was_written_is_durable_even_where_the_server_would_answer_before_it_is(database: Database) -> None:
    database.server.run(f"alter database {database.name} set synchronous_commit = off")
    ledger = Ledger(LedgerAddress.parse(database.dsn))
    with ledger._database.reading() as c:
        assert c.scalar(sa.text("show synchronous_commit")) == "on"
    ledger.close()


def test_a_wrong_password_and_a_missing_database_are_an_operators_to_mend(database: Database) -> None:
    wrong = database.server.dsn(database.name, password="not-the-s3cret")
    for url in (wrong, database.server.dsn("nobody_made_it")):
        with pytest.raises(LedgerUnusable) as error:
            Ledger(LedgerAddress.parse(url))
        assert "PENSTOCK_DATABASE_URL" in error.value.remedy
        assert "s3cret" not in f"{error.value}" and database.server.password not in f"{error.value}"


def test_a_user_who_may_not_make_the_schema_is_told_what_to_ask_for(database: Database, role: str) -> None:
    address = LedgerAddress.parse(database.server.dsn(database.name, role, password="x"))
    with pytest.raises(LedgerUnusable) as error:
        Ledger(address)
    assert f"CREATE SCHEMA {SCHEMA}" in error.value.remedy
    database.execute(f"create schema {SCHEMA} authorization {role}")
    begun(made := Ledger(address))
    made.close()


def test_the_ledger_shares_its_database_with_another_program(database: Database) -> None:
    database.execute("create table alembic_version (version_num text); insert into alembic_version values ('zzzz')")
    database.execute("create table flows (name text)")
    ledger = Ledger(LedgerAddress.parse(database.dsn))
    begun(ledger)
    ledger.close()
    assert database.rows("select * from flows") == [] and database.rows("select * from alembic_version") == [("zzzz",)]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3cret@db.example:5433/ledger",
        "postgres://ann@db.example:5433/ledger?password=s3cret&sslpassword=s3cret",
    ],
)
def test_an_address_shows_no_secret(url: str) -> None:
    address = LedgerAddress.parse(url)
    assert str(address) == "postgresql://ann@db.example:5433/ledger"
    assert "s3cret" not in repr(address) and address.is_shared


@pytest.mark.parametrize("url", ["mysql://x:s3cret@h/d", "sqlite://", "s3cret", "postgresql://x:s3@cret@h:port/d"])
def test_an_address_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(LedgerUnusable) as error:
        LedgerAddress.parse(url)
    assert "s3cret" not in f"{error.value}" and "cret" not in f"{error.value}".replace("secret", "")
    assert "postgresql://" in error.value.remedy


def test_a_reference_in_the_address_is_resolved_where_it_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("LEDGER_PASSWORD", "s3cret")
    address = LedgerAddress.parse("postgresql://ann:${env:LEDGER_PASSWORD}@db.example/ledger")
    assert psycopg.conninfo.conninfo_to_dict(address.conninfo)["password"] == "s3cret"
    with pytest.raises(LedgerUnusable, match="NOBODY_SET_IT"):
        LedgerAddress.parse("postgresql://ann:${env:NOBODY_SET_IT}@db.example/ledger")
