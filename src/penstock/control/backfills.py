"""The loads of a flow, for people and programs: asked for, seen, paused, resumed, cancelled; whether or not a worker runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from penstock.control.lifecycle import worker_of
from penstock.engine.places import ledger_address
from penstock.errors import LoadMissing
from penstock.ledger.leases import Holder, Leases
from penstock.ledger.ledger import Ledger
from penstock.ledger.load_sums import Sums
from penstock.ledger.loads import Load


class LoadDesk:
    """One flow's loads in the ledger of a state directory; LoadMissing when no worker has run the flow."""

    def __init__(self, flow: str, state: Path, opened: Ledger | None = None, who: str | None = None) -> None:
        """A ledger that is `opened` already is its owner's to close. `who` asks for loads; this process when not said."""
        path = ledger_address(state)
        self._flow, self._address, self._who = flow, path, who or str(Holder.here())
        self._owned = opened is None
        self._ledger = opened or (Ledger(path) if path.exists() else None)
        if self._ledger is None or self._ledger.identity(flow) is None:
            self.close()
            raise LoadMissing(
                f"the ledger {path} knows no flow named {flow}",
                remedy="Check the flow's name; --state or PENSTOCK_DATABASE_URL names the ledger that its worker uses."
                " A first start loads by itself.",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back the ledger."""
        if self._ledger is not None and self._owned:
            self._ledger.close()

    def ask(
        self,
        tables: Sequence[str],
        *,
        where: str | None = None,
        destinations: Sequence[str] = (),
        join: bool = False,
        rules: dict[str, Any] | None = None,
    ) -> int:
        """Asks for a load of these tables; returns its number. With `join` the stream leaves them out until they are loaded."""
        assert self._ledger is not None
        known = self._ledger.checkpoints(self._flow)
        unknown = [name for name in destinations if name not in known]
        if unknown:
            raise LoadMissing(
                f"flow {self._flow} has no destination {', '.join(unknown)}", remedy=f"It has: {', '.join(known) or 'none yet'}."
            )
        spec = {"tables": list(tables), "where": where, "destinations": list(destinations), **(rules or {})}
        kind = "table" if join else "backfill"
        return self._ledger.loads.request(self._flow, kind, {k: v for k, v in spec.items() if v}, self._who)

    def wait_taken(self, number: int, patience: float = 15.0) -> bool:
        """Waits until a worker that runs has taken the load up, so that its tables wait for it; false when none has."""
        assert self._ledger is not None
        leases = Leases(self._address)
        try:
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline and worker_of(leases, self._flow) is not None:
                if any(e.load == number for e in self._ledger.loads.entries(self._flow)):
                    return True
                time.sleep(0.1)
        finally:
            leases.close()
        return False

    def page(self, before: int | None, limit: int) -> list[Load]:
        """The flow's newest loads with numbers below that one, the newest first."""
        assert self._ledger is not None
        return self._ledger.loads.page(self._flow, before, limit)

    def find(self, number: int) -> Load:
        """The load of that number. LoadMissing."""
        assert self._ledger is not None
        found = self._ledger.loads.find(self._flow, number)
        if found is None:
            raise LoadMissing(f"flow {self._flow} has no load {number}", flow=self._flow)
        return found

    def wish(self, number: int, wish: str) -> Load:
        """Pauses, resumes or cancels a load; LoadMissing when there is none of that number that is not over."""
        assert self._ledger is not None
        before = self.find(number)
        if not self._ledger.loads.wish(self._flow, number, wish):
            how = "over" if before.is_over else "cancelled, for good"
            raise LoadMissing(f"load {number} of flow {self._flow} is {how}", remedy="Ask for a new one.", flow=self._flow)
        return self.find(number)

    def summaries(self, loads: Sequence[Load]) -> list[dict[str, Any]]:
        """Loads as plain data, with how far each has come."""
        assert self._ledger is not None
        sums = self._ledger.load_sums.of([load.id for load in loads])
        return [_summary(load, sums[load.id]) for load in loads]

    def describe(self, load: Load) -> dict[str, Any]:
        """A load as plain data, with how far it has come, table by table."""
        assert self._ledger is not None
        found = self._ledger.load_sums.by_table(load.id)
        entries = [e for e in self._ledger.loads.entries(self._flow) if e.load == load.id]
        states: dict[tuple[str, str], dict[str, str]] = {}
        for e in entries:
            states.setdefault((e.schema, e.table), {})[e.destination] = e.state
        tables = [{"table": ".".join(name), **_progress(s), "state": states.get(name, {})} for name, s in found.items()]
        return {**self.summaries([load])[0], "tables": tables}


def _summary(load: Load, sums: Sums) -> dict[str, Any]:
    return {
        "id": load.id,
        "kind": load.kind,
        "state": load.state if load.is_over or load.wish == "running" else load.wish,
        "reason": load.reason,
        "asked_by": load.who,
        "asked_at": load.created_at / 1e6,
        "spec": dict(load.spec),
        **_progress(sums),
        **_pace(load, sums),
        "table_count": sums.tables,
    }


def _progress(sums: Sums) -> dict[str, Any]:
    all_read = 100.0 if sums.chunks and sums.read == sums.chunks else 0.0
    return {
        "chunks": sums.chunks,
        "read": sums.read,
        "rows": sums.rows,
        "bytes": sums.bytes,
        "percent": round(100 * sums.bytes / sums.expected, 1) if sums.expected else all_read,
        "delivered": dict(sums.delivered),
    }


def _pace(load: Load, sums: Sums) -> dict[str, Any]:
    """Rows and bytes a second since the load was asked for, and how long the rest will take at that pace."""
    end = (sums.read_at or load.created_at) / 1e6
    seconds = max(0.001, (end if load.is_over or sums.read == sums.chunks else time.time()) - load.created_at / 1e6)
    done, left = sums.bytes, sums.expected - sums.bytes
    return {
        "seconds": round(seconds, 1),
        "rows_per_second": round(sums.rows / seconds),
        "bytes_per_second": round(done / seconds),
        "seconds_left": round(left / (done / seconds), 1) if done and left and not load.is_over else 0.0 if not left else None,
    }
