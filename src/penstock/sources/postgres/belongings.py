"""What belongs to a flow on its server: what it has made, which goes with it, and what it only uses, which stays."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg.sql import SQL, Identifier, Literal

from penstock.errors import PenstockError
from penstock.sources.base import Belonging
from penstock.sources.postgres import publication, slot
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.ddl_trigger import DdlTrigger
from penstock.sources.postgres.refusals import not_owner, slot_busy
from penstock.sources.postgres.state import StateTable

OTHERS = "made by others"
REMOVED = ("slot", "publication", "event trigger", "function")
UNRECORDED = "nothing records that this flow has made it; `penstock slot drop --flow FILE` drops it"


class Belongings:
    """The flow's slot, publication, event triggers and record, also those of names that it had before."""

    def __init__(
        self,
        control: Control,
        flow: str,
        state: StateTable,
        ddl: DdlTrigger,
        slot_name: str,
        publication_name: str,
        home: str = "",
    ) -> None:
        """`home` is where the flow's state lies: what a namesake of another home has made stays."""
        self._control, self._flow, self._state, self._ddl = control, flow, state, ddl
        self._slot, self._publication, self._home = slot_name, publication_name, home

    def look(self) -> list[Belonging]:
        """Everything there is now; changes nothing."""
        rows = self._state.rows()
        if (other := next((o for o in rows if o.kind == "slot" and o.is_foreign(self._home)), None)) is not None:
            note = f"it is that of a flow named {self._flow} whose state lies in {other.home}"
            return [Belonging("slot", other.name, False, note)] if slot.find(self._control, other.name) is not None else []
        made = {o.name for o in rows if o.kind == "slot" and o.made}
        recorded = {o.name for o in rows if o.kind == "slot"}
        slots = [self._slot_of(name, made, recorded) for name in sorted({self._slot} | recorded)]
        published = sorted({self._publication} | {o.name for o in rows if o.kind == "publication"})
        found = [*slots, *map(self._publication_of, published), *self._ddl.belongings()]
        return [*filter(None, found), *self._records(bool(rows))]

    def drop(self) -> list[Belonging]:
        """Removes what the flow has made, the slot first; refuses as a whole while something is in the way. Idempotent."""
        found = self.look()
        if any(o.is_foreign(self._home) for o in self._state.rows()):
            return []
        for one in found:
            if one.blocked is not None:
                raise one.blocked
        going = [one for one in found if one.made and one.kind in REMOVED]
        for one in going:
            self._drop(one)
        for row in self._state.rows():
            self._state.forget(row.kind, row.name)
        emptied = [*self._state.drop_empty(), *self._ddl.drop_empty()]
        return [*going, *(Belonging(kind, name, True) for kind, name in emptied)]

    def drop_slot(self, name: str) -> str | None:
        """Drops the slot of that name if the flow has made it; its record goes with it."""
        for one in self.look():
            if one.kind == "slot" and one.name == name and one.made:
                if one.blocked is not None:
                    raise one.blocked
                self._drop(one)
                return f"slot {name}"
        return None

    def _drop(self, one: Belonging) -> None:
        if one.kind in ("event trigger", "function"):
            self._ddl.drop(one.kind, one.name)
            return
        if one.kind == "slot":
            statement = SQL("SELECT pg_catalog.pg_drop_replication_slot({})").format(Literal(one.name))
        else:
            statement = SQL("DROP PUBLICATION {}").format(Identifier(one.name))
        self._control.execute(statement)
        self._state.forget(one.kind, one.name)

    def _slot_of(self, name: str, made: set[str], recorded: set[str]) -> Belonging | None:
        found = slot.find(self._control, name)
        # Slots belong to the server: one of that name may be another database's.
        if found is None or (found.database != self._control.database and name not in recorded):
            return None
        ours = name in made and found.database == self._control.database
        busy = slot_busy(name, found.active_pid, found.reader) if found.active_pid and (ours or name == self._slot) else None
        note = "" if ours else OTHERS if name in recorded else UNRECORDED
        return Belonging("slot", name, ours, note, busy)

    def _publication_of(self, name: str) -> Belonging | None:
        found = publication.find(self._control, name, self._flow)
        if found is None:
            return None
        blocked: PenstockError | None = None
        if found.made_here and not found.owned:
            role = Identifier(self._control.user).as_string(None)
            statement = publication.text(SQL("DROP PUBLICATION {}").format(Identifier(name)))
            blocked = not_owner(found, f"may not be dropped by {self._control.user}: it", statement, role)
        return Belonging("publication", name, found.made_here, "" if found.made_here else OTHERS, blocked)

    def _records(self, any_row: bool) -> Iterator[Belonging]:
        if any_row:
            yield Belonging("record", f"rows of {self._state.qualified}", True)
        for kind, name in dict.fromkeys([*self._state.leaves(), *self._ddl.leaves()]):
            yield Belonging(kind, name, True)
