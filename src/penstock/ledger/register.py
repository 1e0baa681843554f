"""The register: every flow of a ledger with what is wanted of it, who runs it and its labels, page by page in name order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from penstock.ledger.database import LedgerDatabase
from penstock.ledger.leases import Holder, Lease
from penstock.ledger.lifecycle import Wish
from penstock.ledger.statement import Statement

_COLUMNS = (
    "f.name, f.state, f.reason, f.generation, f.updated_at, f.deleting, d.revision, d.created_at, d.updated_at as defined_at,"
    " w.state as wished, w.who as wished_by, w.why as wished_why, w.at as wished_at, w.reloads,"
    " l.generation as l_generation, l.purpose, l.host, l.pid, l.started, l.machine, l.taken_at, l.renewals, l.deadline,"
    " l.expires_at"
)
_FROM = (
    " from flows f left join definitions d on d.flow = f.name left join wishes w on w.flow = f.name"
    " left join leases l on l.flow = f.name"
)
_WANTED = Statement(
    f"select {_COLUMNS}, {{now}} as seen_at{_FROM}"
    " where d.flow is not null and coalesce(w.state, 'running') <> 'stopped' order by f.name"
)


@dataclass(frozen=True)
class Selector:
    """One condition on a label."""

    label: str
    test: Literal["is", "is not", "there", "not there"]
    value: str = ""


@dataclass(frozen=True)
class Entry:
    """A flow in the register."""

    name: str
    state: str
    """As its worker recorded it last; `created` before the first."""
    reason: str | None
    generation: int
    updated_at: int
    revision: int | None
    """None for a flow that runs from a file."""
    created_at: int | None
    defined_at: int | None
    wish: Wish
    lease: Lease | None
    labels: dict[str, str]
    deleting: str | None
    """Who deletes it; None when nobody does."""


class Register:
    """Reads that nobody waits for."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def page(self, after: str, limit: int, selectors: Sequence[Selector] = ()) -> list[Entry]:
        """The first flows whose names come after that one."""
        values: dict[str, Any] = {"a": after, "n": limit}
        conditions = ["f.name > :a", *(_condition(s, i, values) for i, s in enumerate(selectors))]
        return self._entries(f"where {' and '.join(conditions)} order by f.name limit :n", values)

    def find(self, flow: str) -> Entry | None:
        """One flow."""
        return next(iter(self._entries("where f.name = :f", {"f": flow})), None)

    def wanted(self) -> list[Entry]:
        """Flows that were created here and are to be run by somebody, without their labels: asked for all the time."""
        return [_entry(row, {}) for row in self._database.ask(_WANTED)]

    def _entries(self, rest: str, values: dict[str, Any]) -> list[Entry]:
        with self._database.reading() as c:
            rows = Statement(f"select {_COLUMNS}, {{now}} as seen_at{_FROM} {rest}").run(c, **values).all()
            labels = _labels(c, [row.name for row in rows])
        return [_entry(row._asdict(), labels.get(row.name, {})) for row in rows]


def _condition(selector: Selector, number: int, values: dict[str, Any]) -> str:
    values[f"l{number}"] = selector.label
    same = ""
    if selector.test in ("is", "is not"):
        values[f"v{number}"] = selector.value
        same = f" and s.value = :v{number}"
    there = f"exists (select 1 from flow_labels s where s.flow = f.name and s.label = :l{number}{same})"
    return there if selector.test in ("is", "there") else f"not {there}"


def _labels(c: sa.Connection, names: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    if not names:
        return found
    which: sa.BindParameter[Any] = sa.bindparam("names", expanding=True)
    query = sa.text("select flow, label, value from flow_labels where flow in :names order by label").bindparams(which)
    for flow, label, value in c.execute(query, {"names": names}):
        found.setdefault(flow, {})[label] = value
    return found


def _entry(row: Mapping[str, Any], labels: dict[str, str]) -> Entry:
    name, lease = row["name"], None
    if row["l_generation"] is not None:
        holder = Holder(row["host"], row["pid"], row["started"], row["machine"])
        times = (row["taken_at"], row["renewals"], row["deadline"] / 1e6, row["expires_at"], row["seen_at"])
        lease = Lease(name, row["l_generation"], row["purpose"], holder, *times)
    wished = (row["wished"], row["wished_by"], row["wished_why"], row["wished_at"], row["reloads"])
    wish = Wish() if row["wished"] is None else Wish(*wished)
    flow = (name, row["state"], row["reason"], row["generation"], row["updated_at"])
    return Entry(*flow, row["revision"], row["created_at"], row["defined_at"], wish, lease, labels, row["deleting"])
