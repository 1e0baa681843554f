"""Flows as the ledger knows them: found by name, and listed page by page, by labels and states."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from penstock.ledger.database import LedgerDatabase

PAGE = 100
_KNOWN = "name, identity, definition, generation, state, reason, updated_at, journal, deleting"


@dataclass(frozen=True)
class KnownFlow:
    """A flow as the ledger has it."""

    name: str
    identity: str
    definition: dict[str, object]
    """What of the definition says how positions are to be read: names, types, labels and rules, no options."""
    generation: int
    state: str
    reason: str | None
    updated_at: int
    """µs since 1970, of the last change of state or definition."""
    journal: str | None = None
    """The machine and directory where the flow's journal lies; None before there is one."""
    deleting: str | None = None
    """Who deletes it; None when nobody does."""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FlowPage:
    """A piece of a list in the order of names."""

    flows: tuple[KnownFlow, ...]
    after: str | None
    """Give it as `after` to have the page that follows; None when this is the last."""


class Flows:
    """Every flow that a worker has run."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def page(
        self,
        after: str | None = None,
        limit: int = PAGE,
        labels: Mapping[str, str] | None = None,
        states: Collection[str] | None = None,
    ) -> FlowPage:
        """At most `limit` flows whose names come behind `after`, which have all these labels and one of these states.

        A flow that is there all the time is on exactly one page, whatever comes and goes meanwhile.
        """
        where, values = _filters(after, labels or {}, states)
        query = sa.text(f"select {_KNOWN} from flows {where} order by name limit :limit")
        if states is not None:
            query = query.bindparams(sa.bindparam("states", type_=sa.String, expanding=True))
        with self._database.reading() as c:
            # One more than asked for tells whether a page follows.
            rows = c.execute(query, {**values, "limit": limit + 1}).all()
            found = rows[:limit]
            labelled = _labels(c, [row.name for row in found])
        flows = tuple(_known(row, labelled.get(row.name, {})) for row in found)
        return FlowPage(flows, flows[-1].name if len(rows) > limit and flows else None)

    def all(self) -> Iterator[KnownFlow]:
        """All of them, by name; read page by page."""
        page = self.page(limit=1000)
        yield from page.flows
        while page.after is not None:
            page = self.page(page.after, 1000)
            yield from page.flows

    def find(self, name: str) -> KnownFlow | None:
        """One of them."""
        with self._database.reading() as c:
            row = c.execute(sa.text(f"select {_KNOWN} from flows where name = :n"), {"n": name}).one_or_none()
            return _known(row, _labels(c, [name]).get(name, {})) if row is not None else None


def keep_labels(c: sa.Connection, flow: str, definition: str) -> None:
    """Part of a transaction of the flow's: its labels are those of its definition from then on."""
    labels = json.loads(definition).get("labels") or {}
    c.execute(sa.text("delete from flow_labels where flow = :f"), {"f": flow})
    if labels:
        c.execute(
            sa.text("insert into flow_labels (flow, label, value) values (:f, :l, :v)"),
            [{"f": flow, "l": label, "v": str(value)} for label, value in labels.items()],
        )


def _filters(after: str | None, labels: Mapping[str, str], states: Collection[str] | None) -> tuple[str, dict[str, Any]]:
    terms: list[str] = []
    values: dict[str, Any] = {}
    if after is not None:
        terms.append("name > :after")
        values["after"] = after
    if labels:
        # Counted in one pass: a join per label is quick only where the planner has met the labels already (600 ms before).
        wanted = " or ".join(f"(label = :l{n} and value = :v{n})" for n in range(len(labels)))
        behind = " and flow > :after" if after is not None else ""
        terms.append(
            f"name in (select flow from flow_labels where ({wanted}){behind} group by flow having count(*) = {len(labels)})"
        )
        values |= {f"l{n}": label for n, label in enumerate(labels)} | {f"v{n}": value for n, value in enumerate(labels.values())}
    if states is not None:
        terms.append("state in :states")
        values["states"] = list(states)
    return f"where {' and '.join(terms)}" if terms else "", values


def _labels(c: sa.Connection, names: list[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    query = sa.text("select flow, label, value from flow_labels where flow in :names order by flow, label")
    found: dict[str, dict[str, str]] = {}
    for flow, label, value in c.execute(query.bindparams(sa.bindparam("names", expanding=True)), {"names": names}):
        found.setdefault(flow, {})[label] = value
    return found


def _known(row: sa.Row[Any], labels: dict[str, str]) -> KnownFlow:
    return KnownFlow(**{**row._mapping, "definition": json.loads(row.definition)}, labels=labels)
