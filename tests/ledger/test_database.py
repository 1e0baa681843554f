"""The ledger's database: what goes wrong with one transaction is over with it, and its log is kept short by the lease."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.core.clock import clock
from penstock.errors import LedgerUnreachable, LedgerUnusable
from penstock.ledger.database import LedgerDatabase
from penstock.ledger.leases import Holder, Leases
from penstock.ledger.ledger import Ledger


@pytest.fixture
def database(tmp_path: Path) -> Iterator[LedgerDatabase]:
    made = LedgerDatabase(tmp_path / "ledger.db")
    with made.transaction() as c:
        c.exec_driver_sql("pragma busy_timeout = 1")
    yield made
    made.close()


def count(database: LedgerDatabase) -> int:
    with database.transaction() as c:
        return int(c.scalar(sa.text("select count(*) from flow_events")) or 0)


def _do(database: LedgerDatabase, *statements: str) -> None:
    with database.transaction() as c:
        for statement in statements:
            c.execute(sa.text(statement))


def test_a_transaction_that_could_not_begin_does_not_spoil_the_next(database: LedgerDatabase) -> None:
    with contextlib.closing(sqlite3.connect(str(database.address.path), isolation_level=None)) as other:
        other.execute("begin immediate")
        for _ in range(2):
            with pytest.raises(LedgerUnreachable, match="locked"):
                count(database)
        other.execute("rollback")
    assert count(database) == 0


def test_a_transaction_that_failed_leaves_nothing_and_does_not_spoil_the_next(database: LedgerDatabase) -> None:
    for broken in ("insert into nothing values (1)", "insert into checkpoints (flow) values ('x')"):
        with pytest.raises(LedgerUnusable):
            _do(database, "delete from alembic_version", broken)
    with database.transaction() as c:
        assert c.scalar(sa.text("select count(*) from alembic_version")) == 1


def test_the_log_of_epochs_is_cut_short_by_who_renews_the_lease(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    log = tmp_path / "ledger.db-wal"
    with contextlib.closing(Ledger(path)) as ledger, contextlib.closing(Leases(path)) as leases:
        lease = leases.take("shop", Holder.here(), "worker", clock())
        assert lease is not None
        generation = ledger.take_over("shop", "x", "{}", lease.generation)
        for digit in range(6):
            ledger.remember("shop", generation, {"x": str(digit) * (1 << 20)})
        assert log.stat().st_size > 5 << 20
        assert path.stat().st_size < 1 << 20, "an epoch's transaction has made a checkpoint"
        assert leases.renew("shop", generation, clock())
        assert path.stat().st_size > 1 << 20


def test_a_ledgers_file_is_its_owners_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.take_over("shop", "source", "{}")
    found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    ledger.close()
    assert set(found.values()) == {0o600} and "ledger.db" in found


def test_opening_a_ledger_gives_up_no_lock_that_this_process_has_on_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    held = LedgerDatabase(path)
    LedgerDatabase(path).close()
    with contextlib.closing(sqlite3.connect(path)) as another:
        another.execute("select count(*) from flows").fetchall()
    last = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('select count(*) from flows').fetchall(); c.close()"
    subprocess.run([sys.executable, "-c", last, str(path)], check=True)
    assert (tmp_path / "ledger.db-wal").exists(), "another process took itself for the last, and removed the log under a reader"
    held.close()
