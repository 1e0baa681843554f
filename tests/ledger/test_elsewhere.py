"""A lease between two machines: neither the other's clock nor its process numbers say anything, only its renewals do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.core.clock import clock
from penstock.engine import lease as leasing
from penstock.engine.lease import HeldLease, holding
from penstock.errors import FlowRunning
from penstock.ledger.address import LedgerAddress
from penstock.ledger.leases import SLACK, Leases
from tests.processes import wait_until

TTL = 1.5

OTHER_MACHINE = textwrap.dedent(
    """
    import sys, time
    import penstock.core.clock as clocks
    # A machine that was started a fortnight earlier: what it calls now is far ahead of us, or, the other way, far behind.
    ahead = float(sys.argv[3])
    clocks.clock = lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + ahead
    import penstock.ledger.leases as leases
    leases._machine = lambda: "another/pid:[1]"
    from penstock.engine import lease as leasing
    from penstock.errors import LeaseLost
    from penstock.ledger.address import LedgerAddress
    held = leasing.take(LedgerAddress.parse(sys.argv[1]), "shop", "worker", ttl=float(sys.argv[2]))
    print("held", flush=True)
    for line in sys.stdin:
        try:
            held.check()
            print("valid", flush=True)
        except LeaseLost as error:
            print("lost", error, flush=True)
    """
)


class Other:
    """A process on another machine that holds the lease, and says on request whether it still does."""

    def __init__(self, address: LedgerAddress, ahead: float) -> None:
        url = address.conninfo or f"sqlite:///{address.path}"
        command = [sys.executable, "-c", OTHER_MACHINE, url, str(TTL), str(ahead)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "held"

    def ask(self) -> str:
        assert self.process.stdin is not None
        print("?", file=self.process.stdin, flush=True)
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def other(address: LedgerAddress) -> Iterator[Callable[[float], Other]]:
    made: list[Other] = []

    def make(ahead: float) -> Other:
        made.append(Other(address, ahead))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [-1e9, 1e9], ids=["behind", "ahead"])
def test_a_lease_of_another_machine_is_taken_when_it_was_not_renewed_and_not_before(
    address: LedgerAddress, other: Callable[[float], Other], ahead: float
) -> None:
    first = other(ahead)
    leases = Leases(address, TTL)
    seen = leases.find("shop")
    assert seen is not None and not seen.looks_over()
    with pytest.raises(FlowRunning, match=str(first.process.pid)):
        leasing.take(address, "shop", "flow cleanup", ttl=TTL)
    taken: list[HeldLease] = []
    stood_still: list[float] = []

    def wait() -> None:
        held = leasing.take(address, "shop", "worker", wait=lambda: True, ttl=TTL)
        assert held is not None
        taken.append(held)

    waiting = threading.Thread(target=wait)
    waiting.start()

    def renewals() -> int:
        found = leases.find("shop")
        return found.renewals if found is not None else 0

    begun = renewals()
    wait_until(lambda: renewals() >= begun + 4)
    assert not taken and first.ask() == "valid", "it lives longer than its lease, which it renews"
    first.process.send_signal(signal.SIGSTOP)
    stood_still.append(clock())
    waiting.join(60)
    # The last renewal lies at most a third of the time before the stop.
    assert clock() - stood_still[0] > TTL * (1 + SLACK - 0.4)
    first.process.send_signal(signal.SIGCONT)
    answer = first.ask()
    assert answer.startswith("lost") and f"process {os.getpid()}" in answer
    assert taken[0].valid() and taken[0].took_over
    taken[0].give_up()
    leases.close()


@pytest.mark.slow
def test_a_command_has_the_lease_of_a_worker_that_died_elsewhere_after_it_has_watched_it(
    address: LedgerAddress, other: Callable[[float], Other]
) -> None:
    first = other(1e9)
    first.process.kill()
    leases = Leases(address, TTL)
    wait_until(lambda: bool((found := leases.find("shop")) and found.looks_over()))
    found = leases.find("shop")
    assert found is not None and not found.is_free(), "what looks over is not yet known to be"
    held = leasing.take(address, "shop", "flow cleanup", ttl=TTL)
    assert held is not None and held.generation == found.generation + 1
    held.give_up()
    with holding(address, "shop", "flow rewind"):
        pass
    leases.close()
