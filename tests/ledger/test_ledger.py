"""The ledger: checkpoints move with closed epochs only, and only for the newest generation."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.epoch import Epoch
from penstock.errors import FlowChanged, LedgerFenced, LedgerUnusable
from penstock.ledger.ledger import HISTORY, Checkpoint, Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def epoch(number: int, generation: int, after: int | None = None) -> Epoch:
    begin = number * 10 if after is None else after
    return Epoch("shop", "warehouse", "5ec0ffee", number, begin, begin + 10, 1, generation)


def test_closing_an_epoch_moves_the_checkpoint(ledger: Ledger) -> None:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    assert ledger.begin("shop", "warehouse", 10, generation) == Checkpoint(10, 0)
    first, second = epoch(1, generation), epoch(2, generation)
    ledger.plan(first, 5)
    ledger.plan(second, 7)
    assert ledger.planned("shop", "warehouse") == [first, second]
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(10, 0)
    ledger.close_epoch(first, generation)
    assert ledger.planned("shop", "warehouse") == [second]
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(20, 1)
    ledger.close_epoch(second, generation)
    assert ledger.planned("shop", "warehouse") == []


def test_beginning_again_keeps_the_checkpoint(ledger: Ledger) -> None:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "warehouse", 10, generation)
    assert ledger.begin("shop", "warehouse", 99, generation) == Checkpoint(10, 0)


def test_an_older_generation_can_write_nothing(ledger: Ledger) -> None:
    old = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "warehouse", 10, old)
    planned = epoch(1, old)
    ledger.plan(planned, 1)
    new = ledger.take_over("shop", "5ec0ffee", "{}")
    assert new == old + 1
    for write in (
        lambda: ledger.plan(epoch(2, old), 1),
        lambda: ledger.close_epoch(planned, old),
        lambda: ledger.advance("shop", "warehouse", 500, old),
        lambda: ledger.begin("shop", "other", 1, old),
        lambda: ledger.record_empty(epoch(2, old)),
    ):
        with pytest.raises(LedgerFenced):
            write()
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(10, 0)
    ledger.close_epoch(planned, new)
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(20, 1)


def test_a_checkpoint_never_moves_back(ledger: Ledger) -> None:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "warehouse", 10, generation)
    ledger.advance("shop", "warehouse", 50, generation)
    ledger.advance("shop", "warehouse", 40, generation)
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(50, 0)


def test_an_empty_epoch_is_recorded_with_its_span(tmp_path: Path, ledger: Ledger) -> None:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "warehouse", 10, generation)
    ledger.record_empty(epoch(1, generation, after=10))
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(20, 1)
    assert ledger.planned("shop", "warehouse") == []
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        found = connection.execute("select number, after, upto, changes, state from epochs").fetchall()
    connection.close()
    assert found == [(1, 10, 20, 0, "closed")]


def test_a_flow_on_another_source_is_refused(ledger: Ledger) -> None:
    ledger.take_over("shop", "5ec0ffee", "{}")
    with pytest.raises(FlowChanged):
        ledger.take_over("shop", "0ther000", "{}")


def test_the_history_of_epochs_is_bounded(tmp_path: Path, ledger: Ledger) -> None:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "warehouse", 10, generation)
    current = epoch(1, generation)
    ledger.plan(current, 1)
    for number in range(2, HISTORY + 50):
        ledger.close_epoch(current, generation)
        current = epoch(number, generation)
        ledger.plan(current, 1)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        assert connection.execute("select count(*) from epochs").fetchone()[0] <= HISTORY + 1


def test_a_transaction_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    program = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        import sqlalchemy as sa
        from penstock.ledger.ledger import Ledger
        ledger = Ledger(Path({str(path)!r}))
        generation = ledger.take_over("shop", "5ec0ffee", "{{}}")
        ledger.begin("shop", "warehouse", 10, generation)
        with ledger._fenced("shop", generation) as connection:
            connection.execute(sa.text("update checkpoints set position = 999"))
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ).returncode == -signal.SIGKILL
    ledger = Ledger(path)
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(10, 0)
    ledger.close()


def test_a_ledger_of_a_newer_version_is_refused_politely(tmp_path: Path, ledger: Ledger) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    connection.close()
    with pytest.raises(LedgerUnusable, match="newer version"):
        Ledger(tmp_path / "ledger.db")


@pytest.mark.parametrize("content", [b"this is not a database at all, but long enough to be looked at" * 20])
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.db").write_bytes(content)
    with pytest.raises(LedgerUnusable):
        Ledger(tmp_path / "other.db")
