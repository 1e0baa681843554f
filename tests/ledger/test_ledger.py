"""The ledger: checkpoints move with closed epochs only, and only for the newest generation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.epoch import Epoch
from penstock.errors import FlowChanged, LedgerFenced, LedgerUnusable
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import HISTORY, Checkpoint, Ledger
from tests.ledger.conftest import rows


@pytest.fixture
def ledger(address: LedgerAddress) -> Iterator[Ledger]:
    made = Ledger(address)
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


def test_an_empty_epoch_is_recorded_with_its_span(address: LedgerAddress, ledger: Ledger) -> None:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "warehouse", 10, generation)
    ledger.record_empty(epoch(1, generation, after=10))
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(20, 1)
    assert ledger.planned("shop", "warehouse") == []
    assert rows(address, "select number, after, upto, changes, state from epochs") == [(1, 10, 20, 0, "closed")]


def test_a_flow_on_another_source_is_refused(ledger: Ledger) -> None:
    ledger.take_over("shop", "5ec0ffee", "{}")
    with pytest.raises(FlowChanged):
        ledger.take_over("shop", "0ther000", "{}")


@pytest.mark.slow
def test_the_history_of_epochs_is_bounded(address: LedgerAddress, ledger: Ledger) -> None:
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.begin("shop", "warehouse", 10, generation)
    current = epoch(1, generation)
    ledger.plan(current, 1)
    for number in range(2, HISTORY + 50):
        ledger.close_epoch(current, generation)
        current = epoch(number, generation)
        ledger.plan(current, 1)
    assert rows(address, "select count(*) from epochs")[0][0] <= HISTORY + 1


def test_a_transaction_that_is_killed_leaves_nothing_behind(address: LedgerAddress) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        import sqlalchemy as sa
        from penstock.ledger.address import LedgerAddress
        from penstock.ledger.ledger import Ledger
        ledger = Ledger(LedgerAddress.parse(sys.argv[1]))
        generation = ledger.take_over("shop", "5ec0ffee", "{}")
        ledger.begin("shop", "warehouse", 10, generation)
        with ledger._fenced("shop", generation) as connection:
            connection.execute(sa.text("update checkpoints set position = 999"))
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    url = address.conninfo or f"sqlite:///{address.path}"
    assert subprocess.run([sys.executable, "-c", program, url], env=os.environ).returncode == -signal.SIGKILL
    ledger = Ledger(address)
    assert ledger.checkpoint("shop", "warehouse") == Checkpoint(10, 0)
    # Nor does it hold anybody up.
    generation = ledger.take_over("shop", "5ec0ffee", "{}")
    ledger.advance("shop", "warehouse", 20, generation)
    ledger.close()


@pytest.mark.parametrize("content", [b"this is not a database at all, but long enough to be looked at" * 20])
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.db").write_bytes(content)
    with pytest.raises(LedgerUnusable):
        Ledger(tmp_path / "other.db")
