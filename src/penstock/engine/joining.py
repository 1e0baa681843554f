"""Tables that join a running flow: whether their rows are loaded first, and the load that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from penstock.core.flow import Flow
from penstock.engine.load_plans import Table, enter, named
from penstock.ledger.leases import Holder
from penstock.ledger.ledger import Ledger

_log = structlog.get_logger()


class Joining:
    """What the source tells of tables that join; used by its threads."""

    def __init__(
        self,
        flow: Flow,
        ledger: Ledger,
        generation: int,
        *,
        mode: str,
        takes: Callable[[], Mapping[str, Callable[[str, str], bool]]],
        notice: Callable[[], None],
    ) -> None:
        """`mode` is what `snapshot` says; `takes` says by destination which tables it has; `notice` tells of a new load."""
        self._flow, self._ledger, self._generation = flow.name, ledger, generation
        self._mode, self._takes, self._notice = mode, takes, notice
        self.delivers = False
        """Whether anything may be delivered by now. Until then a load is only asked for; its tables wait from the start on."""

    def __call__(self, tables: Sequence[Table], since: int) -> bool:
        """Asks for a load of those that somebody takes and no load has brought since the position; whether they are loaded."""
        if self._mode != "initial":
            return False
        takes, loads = self._takes(), self._ledger.loads
        known = {(e.schema, e.table) for e in loads.entries(self._flow) if e.state != "live" or e.until > since}
        known |= {name for load in loads.open(self._flow) if load.kind == "table" for name in named(load)}
        new = [name for name in tables if name not in known and any(takes_table(*name) for takes_table in takes.values())]
        if not new:
            return True
        qualified = [".".join(name) for name in new]
        number = loads.request(self._flow, "table", {"tables": qualified, "names": new, "joined": True}, str(Holder.here()))
        if self.delivers:
            # Before anybody else sees them: no change of theirs is delivered before their rows.
            load = next(load for load in loads.open(self._flow) if load.id == number)
            enter(load, self._ledger, self._generation, takes)
        _log.info("tables that join are loaded", load=number, count=len(new), tables=", ".join(qualified[:8]))
        self._notice()
        return True
