"""Two sessions at one ledger: whoever lost the flow writes nothing, whatever the moment, and nobody is held up for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from penstock.core.clock import clock
from penstock.core.epoch import Epoch
from penstock.errors import LedgerFenced, LedgerNewer
from penstock.ledger.address import LedgerAddress
from penstock.ledger.leases import Holder, Leases
from penstock.ledger.ledger import Checkpoint, Ledger
from penstock.ledger.schema import HEAD
from tests.ledger.conftest import rows

PRELUDE = """
import os, signal, sys
import sqlalchemy as sa
from penstock.ledger.address import LedgerAddress
from penstock.ledger.ledger import Ledger
where = LedgerAddress.parse(sys.argv[1])
"""


def url(address: LedgerAddress) -> str:
    return address.conninfo or f"sqlite:///{address.path}"


@contextmanager
def process(address: LedgerAddress, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that uses the ledger."""
    code = PRELUDE + textwrap.dedent(program)
    with subprocess.Popen(
        [sys.executable, "-c", code, url(address), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        try:
            yield made
        finally:
            made.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def two(address: LedgerAddress) -> Iterator[tuple[Ledger, Ledger]]:
    """Two workers' ledgers, which are one."""
    mine, theirs = Ledger(address), Ledger(address)
    yield mine, theirs
    mine.close()
    theirs.close()


WRITES: dict[str, Callable[[Ledger, int], object]] = {
    "plan": lambda ledger, g: ledger.plan(Epoch("shop", "log", "5ec0ffee", 2, 20, 30, 1, g), 1),
    "close": lambda ledger, g: ledger.close_epoch(Epoch("shop", "log", "5ec0ffee", 1, 10, 20, 1, g), g),
    "advance": lambda ledger, g: ledger.advance("shop", "log", 99, g),
    "remember": lambda ledger, g: ledger.remember("shop", g, {"seen": 1}),
    "expire": lambda ledger, g: ledger.expire("shop", "log", g, 1 << 60),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_meets_a_take_over_waits_for_it_and_is_fenced(two: tuple[Ledger, Ledger], name: str) -> None:
    mine, theirs = two
    generation = mine.take_over("shop", "5ec0ffee", "{}")
    mine.begin("shop", "log", 10, generation)
    mine.plan(Epoch("shop", "log", "5ec0ffee", 1, 10, 20, 1, generation), 1)
    with ThreadPoolExecutor(1) as pool:
        with theirs._database.transaction("shop") as c:
            c.execute(sa.text("update flows set generation = generation + 1"))
            write = pool.submit(WRITES[name], mine, generation)
            with pytest.raises(TimeoutError):
                write.result(0.3)
        with pytest.raises(LedgerFenced, match=f"generation {generation + 1}"):
            write.result(30)
    assert mine.checkpoint("shop", "log") == Checkpoint(10, 0)
    assert [e.number for e in mine.planned("shop", "log")] == [1] and mine.memory("shop") == {}


def test_a_take_over_waits_for_a_write_that_has_begun(two: tuple[Ledger, Ledger]) -> None:
    mine, theirs = two
    generation = mine.take_over("shop", "5ec0ffee", "{}")
    mine.begin("shop", "log", 10, generation)
    with ThreadPoolExecutor(1) as pool:
        with mine._fenced("shop", generation) as c:
            taken = pool.submit(theirs.take_over, "shop", "5ec0ffee", "{}")
            with pytest.raises(TimeoutError):
                taken.result(0.3)
            c.execute(sa.text("update checkpoints set position = 20"))
        assert taken.result(30) == generation + 1
    assert theirs.checkpoint("shop", "log") == Checkpoint(20, 0)


def test_of_many_that_ask_for_a_lease_at_once_one_has_it(address: LedgerAddress) -> None:
    """Also the very first one, for which there is no row yet."""
    everybody = [Leases(address) for _ in range(4)]
    gate = threading.Barrier(len(everybody))

    def ask(leases: Leases) -> int | None:
        gate.wait()
        found = leases.take("shop", Holder.here(), "worker", clock())
        return found.generation if found is not None else None

    generations = []
    with ThreadPoolExecutor(len(everybody)) as pool:
        for _ in range(5):
            won = [g for g in pool.map(ask, everybody) if g is not None]
            assert len(won) == 1
            generations += won
            everybody[0].give_up("shop", won[0])
    assert generations == sorted(set(generations))
    for leases in everybody:
        leases.close()


@pytest.mark.slow
def test_another_process_writes_nothing_from_the_moment_it_was_taken_over(address: LedgerAddress) -> None:
    ledger = Ledger(address)
    with process(
        address,
        """
        from penstock.errors import LedgerFenced
        ledger = Ledger(where)
        generation = ledger.take_over("shop", "5ec0ffee", "{}")
        ledger.begin("shop", "log", 1, generation)
        print("begun", flush=True)
        try:
            for position in range(2, 1 << 40):
                ledger.advance("shop", "log", position, generation)
        except LedgerFenced:
            print(position, flush=True)
        """,
    ) as other:
        assert line(other) == "begun"
        before = ledger.checkpoint("shop", "log")
        generation = ledger.take_over("shop", "5ec0ffee", "{}")
        at = ledger.checkpoint("shop", "log")
        refused = int(line(other))
    assert before is not None and at is not None and at.position == refused - 1 >= before.position
    assert ledger.checkpoint("shop", "log") == at
    ledger.advance("shop", "log", refused, generation)
    ledger.close()


def test_a_process_that_stands_still_within_a_transaction_holds_nobody_up_for_ever(address: LedgerAddress) -> None:
    if not address.is_shared:
        pytest.skip(
            "a file's lock goes with its process only, which whoever takes the lease over ends: tests/engine/test_lease.py"
        )
    with process(
        address,
        """
        import penstock.ledger.postgres as postgres
        postgres._SETTINGS = postgres._SETTINGS.replace("'8s'", "'1s'")
        ledger = Ledger(where)
        generation = ledger.take_over("shop", "5ec0ffee", "{}")
        ledger.begin("shop", "log", 1, generation)
        try:
            with ledger._fenced("shop", generation) as c:
                c.execute(sa.text("update checkpoints set position = 99"))
                print("within", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
        except Exception as error:
            print(getattr(error, "code", error), flush=True)
        """,
    ) as other:
        assert line(other) == "within"
        ledger = Ledger(address)
        generation = ledger.take_over("shop", "5ec0ffee", "{}")
        assert ledger.checkpoint("shop", "log") == Checkpoint(1, 0)
        os.kill(other.pid, signal.SIGCONT)
        assert line(other) == "ledger_unreachable"
        ledger.advance("shop", "log", 2, generation)
        assert ledger.checkpoint("shop", "log") == Checkpoint(2, 0)
        ledger.close()


@pytest.mark.slow
def test_processes_that_start_at_once_on_an_empty_ledger_migrate_it_once(new_address: LedgerAddress) -> None:
    program = PRELUDE + textwrap.dedent(
        """
        sys.stdin.read(1)
        Ledger(where).close()
        """
    )
    command = [sys.executable, "-c", program, url(new_address)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(4)]
    for one in started:
        assert one.stdin is not None
        one.stdin.write(b"!")
        one.stdin.close()
    assert [one.wait(120) for one in started] == [0] * len(started)
    assert rows(new_address, "select version_num from alembic_version") == [(HEAD,)]


def test_a_ledger_of_a_newer_version_is_refused_politely(new_address: LedgerAddress) -> None:
    Ledger(new_address).close()
    rows(new_address, "update alembic_version set version_num = '9999'")
    with pytest.raises(LedgerNewer, match=f"9999.*{HEAD}") as refusal:
        Ledger(new_address)
    assert "Upgrade" in refusal.value.remedy
    assert rows(new_address, "select version_num from alembic_version") == [("9999",)], "and left alone"
