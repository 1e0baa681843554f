"""Who takes part in loads: a destination that leaves a flow leaves its loads too; once it is back it gets what it had not got."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from penstock.ledger.loads import Fenced, Loads

OWN = ("takers", "left")
"""What a load's spec has of this; the rest is what somebody asked for."""


class Partaking:
    """A load goes on without a destination that is gone: its chunks go when the others have them, and never come back."""

    def __init__(self, loads: Loads, fenced: Fenced) -> None:
        self._loads, self._fenced = loads, fenced

    def follow(self, c: sa.Connection, flow: str, names: Collection[str], back: Collection[str]) -> None:
        """Part of the transaction that says which destinations the flow has.

        Whoever is gone, or was away and is `back`, has no place in a load that goes on. A backfill that a destination has left
        is asked for again for it alone once it is back; tables that were to join wait until `begin_again`.
        """
        for load in self._loads.listed(c, flow):
            spec = dict(load.spec)
            if not load.is_over:
                known = spec.get("takers") or spec.get("destinations") or ([] if load.state == "requested" else list(names))
                kept = [n for n in known if n in names and (n not in back or load.state == "requested")]
                if kept != known:
                    left = [n for n in known if n not in kept and n not in spec.get("left", ())]
                    spec |= {"takers": kept, "left": [*spec.get("left", ()), *left]}
            if load.kind == "backfill" and load.wish != "cancelled" and load.state != "failed":
                for name in [n for n in spec.get("left", ()) if n in names]:
                    spec["left"] = [n for n in spec["left"] if n != name]
                    asked = {k: v for k, v in spec.items() if k not in OWN}
                    self._loads.insert(c, flow, "backfill", {**asked, "destinations": [name]}, load.who)
            if spec != load.spec:
                c.execute(sa.text("update loads set spec = :s where id = :i"), {"s": json.dumps(spec), "i": load.id})

    def begin_again(self, flow: str, generation: int, destination: str, who: str) -> list[tuple[str, str]]:
        """Asks for a load of exactly the tables that wait at the destination for one that brings them nothing more.

        It is over, or goes on without the destination. They wait for the new one from the same moment on, and its end settles
        where they go over to the stream. Returns them; none when every table waits for a load that is to come.
        """
        with self._fenced(flow, generation) as c:
            coming = {load.id for load in self._loads.listed(c, flow) if not load.is_over and load.takes(destination)}
            keys = {"f": flow, "d": destination}
            waiting = c.execute(
                sa.text(
                    "select schema_name, table_name, load_id from load_entries"
                    " where flow = :f and destination = :d and state = 'loading' order by schema_name, table_name"
                ),
                keys,
            ).all()
            tables = [(str(row.schema_name), str(row.table_name)) for row in waiting if row.load_id not in coming]
            if tables:
                at = c.scalar(sa.text("select position from checkpoints where flow = :f and destination = :d"), keys)
                # Those that the source has no longer are no reason to refuse the others.
                spec: dict[str, Any] = {"tables": [".".join(name) for name in tables], "names": tables, "joined": True}
                load = self._loads.insert(c, flow, "table", {**spec, "destinations": [destination]}, who)
                self._loads.add_entries(c, flow, load, {destination: tables}, int(at or 0))
            return tables
