"""Leases: who may act for a flow, until when, and under which generation.

Nobody's clock of day decides who may take one. Processes of one machine compare the clock that counts since its start; a
process elsewhere takes a lease over when it has watched it, by its own such clock, for longer than its time without seeing it
renewed. What is only shown, and whether watching is worth while, is told by the ledger's clock: one clock for all who ask.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from penstock.core.clock import clock
from penstock.ledger.address import LedgerAddress
from penstock.ledger.database import LedgerDatabase
from penstock.ledger.statement import Statement

TTL = 10.0
"""Seconds that a lease lasts from the beginning of its last renewal."""

SLACK = 0.1
"""By how much of its time a lease of another machine is watched longer: clocks do not run equally fast."""

_FIND = Statement(
    "select flow, generation, purpose, host, pid, started, machine, taken_at, renewals, deadline, expires_at, {now} as seen_at"
    " from leases where flow = :f"
)
_TAKE = Statement(
    "insert into leases (flow, generation, purpose, host, pid, started, machine, taken_at, renewals, deadline, expires_at)"
    " values (:f, :g, :p, :host, :pid, :started, :machine, {now}, 0, :d, {now} + :ttl) on conflict (flow)"
    " do update set generation = excluded.generation, purpose = excluded.purpose, host = excluded.host,"
    " pid = excluded.pid, started = excluded.started, machine = excluded.machine, taken_at = excluded.taken_at,"
    " renewals = 0, deadline = excluded.deadline, expires_at = excluded.expires_at"
)
_RENEW = Statement(
    "update leases set renewals = renewals + 1, deadline = :d, expires_at = {now} + :ttl"
    " where flow = :f and generation = :g and expires_at <> 0"
)
_GIVE_UP = Statement("update leases set expires_at = 0, deadline = 0 where flow = :f and generation = :g")


@dataclass(frozen=True)
class Holder:
    """A process, told from every other that has or had its number."""

    host: str
    pid: int
    started: int
    """When it began, in the kernel's ticks since the machine's start."""
    machine: str
    """This start of the machine, and the room in which the process numbers count."""

    @classmethod
    def here(cls) -> Holder:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _started(os.getpid()) or 0, _machine())

    def is_gone(self) -> bool:
        """Whether the process has ended for certain; false where it cannot be seen from here."""
        began = _own_start(self.pid) if self.pid == os.getpid() else _started(self.pid)
        return self.machine == _machine() and began not in (self.started, None)

    def shares_clock(self) -> bool:
        """Whether `clock` is the same for it and for us."""
        return self.machine.partition("/")[0] == _machine().partition("/")[0]

    def stands_still(self) -> bool:
        """Whether the process is stopped, by a signal or a debugger: it runs nothing until somebody wakes it."""
        fields = _stat(self.pid) if self.machine == _machine() else None
        return fields is not None and fields[0] in "Tt" and int(fields[19]) == self.started

    def end(self) -> bool:
        """Ends the process with SIGKILL if it stands still; false when it does not, or when that is not ours to do."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            # Looked at with the handle in hand: the number may have gone to another process before.
            if not self.stands_still():
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Lease:
    """A lease as the ledger has it."""

    flow: str
    generation: int
    purpose: str
    """What it was taken for: `worker`, or a command's name."""
    holder: Holder
    taken_at: int
    """In µs since 1970, by the ledger's clock, as all but the deadline."""
    renewals: int
    deadline: float
    """By the holder's `clock`."""
    expires_at: int
    """0 when it was given up."""
    seen_at: int
    """When it was read."""

    @property
    def is_given_up(self) -> bool:
        """Whether its holder has ended it."""
        return self.expires_at == 0

    def is_free(self, watched: Lease | None = None) -> bool:
        """Whether another may take it; `watched` is what it was when the caller began to watch it, for longer than it lasts."""
        if self.is_given_up or self.holder.is_gone():
            return True
        if self.holder.shares_clock():
            return clock() >= self.deadline
        return watched is not None and (watched.generation, watched.renewals) == (self.generation, self.renewals)

    def looks_over(self) -> bool:
        """Whether it is free or, on another machine, seems so: good enough to be shown, and to begin to watch it."""
        return self.is_free() or (not self.holder.shares_clock() and self.seen_at > self.expires_at)


class Leases:
    """The leases of a ledger, over a connection of their own: a renewal waits for no other work of its process."""

    def __init__(self, where: LedgerAddress | Path, ttl: float = TTL) -> None:
        self.ttl = ttl
        """How long a lease lasts that is taken or renewed here."""
        # To take a lease must be durable, since the generation counts; to renew it need not be: who loses power is gone. On a
        # server a second connection would cost more than a sync every three seconds.
        self._database = LedgerDatabase(where)
        shared = self._database.address.is_shared
        self._quick = self._database if shared else LedgerDatabase(where, durable=False)
        self.in_a_file = not shared
        """Whether the ledger is a file, whose lock a stopped process keeps; a server ends such a transaction by itself."""

    def close(self) -> None:
        """Gives back the connections."""
        self._database.close()
        self._quick.close()

    def find(self, flow: str) -> Lease | None:
        """The flow's lease, be it held, expired or given up."""
        with self._quick.reading() as c:
            return _of(_FIND.run(c, f=flow).one_or_none())

    def take(self, flow: str, holder: Holder, purpose: str, began: float, watched: Lease | None = None) -> Lease | None:
        """The lease, with a generation that fences everybody before; None when another holds it.

        `began` is the caller's `clock` before it asked: the lease lasts from then.
        """
        with self._database.transaction(flow) as c:
            former = _of(_FIND.run(c, f=flow).one_or_none())
            if former is not None and not former.is_free(watched):
                return None
            known = c.scalar(sa.text("select generation from flows where name = :f"), {"f": flow})
            # A ledger that was lost does not count from 1 again: destinations would take its worker for an older one.
            newest = max(int(known or 0), former.generation if former is not None else 0) or int(time.time())
            place = {"f": flow, "g": newest + 1, "p": purpose, **vars(holder)}
            _TAKE.run(c, **place, d=int((began + self.ttl) * 1e6), ttl=int(self.ttl * 1e6))
            c.execute(sa.text("update flows set generation = :g where name = :f"), {"g": newest + 1, "f": flow})
            return _of(_FIND.run(c, f=flow).one())

    def renew(self, flow: str, generation: int, began: float) -> bool:
        """Lets the lease last from `began` on; false when it is no longer the caller's."""
        values = {"d": int((began + self.ttl) * 1e6), "ttl": int(self.ttl * 1e6), "f": flow, "g": generation}
        return self._quick.change(_RENEW, **values) == 1

    def give_up(self, flow: str, generation: int) -> None:
        """Ends the lease at once; nothing when it is another's."""
        self._quick.change(_GIVE_UP, f=flow, g=generation)


def _of(row: sa.Row[tuple[object, ...]] | None) -> Lease | None:
    if row is None:
        return None
    r = row._mapping
    holder = Holder(r["host"], r["pid"], r["started"], r["machine"])
    times = (r["taken_at"], r["renewals"], r["deadline"] / 1e6, r["expires_at"], r["seen_at"])
    return Lease(r["flow"], r["generation"], r["purpose"], holder, *times)


@functools.cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"


_own: dict[int, int] = {}


def _own_start(pid: int) -> int | None:
    """When this process began, whose number tells it from a fork: the server asks about itself all the time."""
    found = _own.get(pid) or _started(pid)
    if found:
        _own[pid] = found
    return found


def _started(pid: int) -> int | None:
    """When the process began, in ticks; 0 when there is none, or only its remains; None when it cannot be seen."""
    fields = _stat(pid)
    if fields is None:
        return None if _exists(pid) else 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _stat(pid: int) -> list[str] | None:
    """What the kernel says of a process, from its state on; None when it says nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
