"""Definitions in the ledger: flows that were created here, with every revision, and who wrote it.

References to secrets stand in them as they were sent; nothing that was resolved is ever written. A revision's number never goes
back, and its tag is another one when a flow of the same name is created again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from penstock.errors import FlowExists, FlowUnknown, KeyReused, LeaseLost, RevisionStale, TransitionRefused
from penstock.ledger.database import LedgerDatabase
from penstock.ledger.lifecycle import Wish, keep_wish, note_event, read_wish, refuse_deleted

REVISIONS = 100
"""How many revisions of a flow are kept."""
KEYS_KEPT = 24 * 3600.0
"""Seconds for which a creation's key is remembered."""


@dataclass(frozen=True)
class Stored:
    """A flow's definition as it stands."""

    flow: str
    definition: dict[str, Any]
    revision: int
    created_at: int
    created_by: str
    updated_at: int
    updated_by: str

    @property
    def etag(self) -> str:
        """What names this revision and no other one, also of another flow that had the name."""
        return f"{self.created_at:x}-{self.revision}"


@dataclass(frozen=True)
class Revision:
    """A definition as it once was."""

    revision: int
    definition: dict[str, Any]
    at: int
    who: str
    why: str | None


@dataclass(frozen=True)
class Draft:
    """A definition to be kept: as it was sent, the part that any worker may know, and its labels."""

    flow: str
    definition: Mapping[str, Any]
    kept: str
    """What `flows` keeps of it: names, types and rules."""
    labels: Mapping[str, str]


@dataclass(frozen=True)
class CreationKey:
    """What makes two requests to create a flow one."""

    key: str
    digest: str
    """Of the request, so that another one with the same key is refused."""


class Definitions:
    """The definitions of a ledger; each method is one durable transaction."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def create(self, draft: Draft, who: str, why: str | None, wish: Wish, key: CreationKey | None = None) -> tuple[Stored, bool]:
        """Keeps a new flow, and what is wanted of it; false when the key has already made it. FlowExists, KeyReused."""
        with self._database.transaction(draft.flow) as c:
            if key is not None and (made := _made_by(c, who, key)) is not None:
                return _require(c, made), False
            if c.scalar(sa.text("select 1 from flows where name = :f"), {"f": draft.flow}) is not None:
                raise FlowExists(f"there is already a flow named {draft.flow}", flow=draft.flow)
            now = _now()
            c.execute(
                sa.text(
                    "insert into flows (name, identity, definition, generation, state, updated_at)"
                    " values (:f, '', :k, 0, 'created', :t)"
                ),
                {"f": draft.flow, "k": draft.kept, "t": now},
            )
            c.execute(
                sa.text(
                    "insert into definitions (flow, definition, revision, created_at, created_by, updated_at, updated_by)"
                    " values (:f, :d, 1, :t, :w, :t, :w)"
                ),
                {"f": draft.flow, "d": json.dumps(draft.definition), "t": now, "w": who},
            )
            _revise(c, draft, 1, who, why, now)
            keep_wish(c, draft.flow, wish)
            note_event(c, draft.flow, "created", who, why, None)
            if key is not None:
                c.execute(
                    sa.text("insert into creation_keys (who, creation_key, digest, flow, at) values (:w, :k, :d, :f, :t)"),
                    {"w": who, "k": key.key, "d": key.digest, "f": draft.flow, "t": now},
                )
            return _require(c, draft.flow), True

    def update(self, draft: Draft, who: str, why: str | None, etag: str | None) -> Stored:
        """Keeps another definition of the flow; its state stays. FlowUnknown, RevisionStale when `etag` is another one's.

        TransitionRefused while the flow is being deleted.
        """
        with self._database.transaction(draft.flow) as c:
            before = _require(c, draft.flow)
            refuse_deleted(c, draft.flow)
            self.match(before, etag)
            if before.definition == draft.definition:
                return before
            now, number = _now(), before.revision + 1
            c.execute(
                sa.text(
                    "update definitions set definition = :d, revision = :r, updated_at = :t, updated_by = :w where flow = :f"
                ),
                {"d": json.dumps(draft.definition), "r": number, "t": now, "w": who, "f": draft.flow},
            )
            # A running worker's own record of what it runs is its to change; before the first start there is no other.
            c.execute(
                sa.text("update flows set definition = :k where name = :f and identity = ''"), {"k": draft.kept, "f": draft.flow}
            )
            _revise(c, draft, number, who, why, now)
            note_event(c, draft.flow, "updated", who, why, None)
            return _require(c, draft.flow)

    def begin_delete(self, flow: str, leased: int, who: str, etag: str | None = None) -> None:
        """From now on the flow is being deleted: it is not started nor changed any more. May run twice.

        `leased` is the generation of the caller's lease. FlowUnknown, RevisionStale, LeaseLost; TransitionRefused for a flow that
        is not stopped, also by somebody who has started it only just now.
        """
        with self._database.transaction(flow) as c:
            self.match(_require(c, flow), etag)
            refuse_unless_stopped(flow, read_wish(c, flow), "deleted")
            if c.scalar(sa.text("select generation from leases where flow = :f"), {"f": flow}) != leased:
                raise LeaseLost(f"flow {flow} was taken over before anything of it was deleted", flow=flow)
            c.execute(sa.text("update flows set deleting = :w where name = :f"), {"w": who, "f": flow})

    def delete(self, flow: str, who: str, why: str | None) -> None:
        """Removes what the ledger knows of a flow whose deletion was begun; what remains is the event. FlowUnknown."""
        with self._database.transaction(flow) as c:
            _require(c, flow)
            if c.scalar(sa.text("select deleting from flows where name = :f"), {"f": flow}) is None:
                # Somebody else has finished it meanwhile, and created another one.
                raise FlowUnknown(f"flow {flow} was deleted by somebody else, and this is another one", flow=flow)
            note_event(c, flow, "deleted", who, why, None)
            # The newest event stays: numbers of events only grow, and who watches must see this one.
            last = c.scalar(sa.text("select max(id) from flow_events where flow = :f"), {"f": flow})
            c.execute(sa.text("delete from flow_events where flow = :f and id < :n"), {"f": flow, "n": last})
            for table in (
                "dead_letters",
                "quarantines",
                "epochs",
                "checkpoints",
                "wishes",
                "leases",
                "flow_labels",
                "definition_revisions",
            ):
                c.execute(sa.text(f"delete from {table} where flow = :f"), {"f": flow})
            c.execute(sa.text("delete from definitions where flow = :f"), {"f": flow})
            c.execute(sa.text("delete from flows where name = :f"), {"f": flow})

    def match(self, stored: Stored, etag: str | None) -> None:
        """RevisionStale when `etag` names another revision."""
        if etag is not None and etag != stored.etag:
            raise RevisionStale(
                f"flow {stored.flow} was changed by {stored.updated_by} meanwhile: its revision is {stored.etag}, not {etag}",
                flow=stored.flow,
            )

    def find(self, flow: str) -> Stored | None:
        """The flow's definition; None for one that was not created here."""
        with self._database.reading() as c:
            return _find(c, flow)

    def revisions(self, flow: str, limit: int = 20) -> list[Revision]:
        """The newest revisions, the newest first."""
        with self._database.reading() as c:
            rows = c.execute(
                sa.text(
                    "select revision, definition, at, who, why from definition_revisions where flow = :f"
                    " order by revision desc limit :n"
                ),
                {"f": flow, "n": limit},
            ).all()
            return [Revision(**{**row._mapping, "definition": json.loads(row.definition)}) for row in rows]

    def reset(self, c: sa.Connection, flow: str) -> bool:
        """Forgets the state of a flow that was created here, as part of somebody's transaction; false for any other flow."""
        if _find(c, flow) is None:
            return False
        for table in ("dead_letters", "quarantines", "epochs", "checkpoints", "leases"):
            c.execute(sa.text(f"delete from {table} where flow = :f"), {"f": flow})
        c.execute(
            sa.text(
                "update flows set identity = '', generation = 0, state = 'created', reason = null, memory = null, journal = null,"
                " updated_at = :t"
                " where name = :f"
            ),
            {"f": flow, "t": _now()},
        )
        keep_wish(c, flow, Wish("stopped", "penstock", "its state was removed", _now()))
        return True


def refuse_unless_stopped(flow: str, wish: Wish, participle: str) -> None:
    """TransitionRefused when the flow is wished to run, or a reconfiguration lets it run again."""
    if wish.state != "stopped" or wish.then is not None:
        remedy = f"`penstock flow stop` it first; then it can be {participle}."
        raise TransitionRefused(f"flow {flow} is not stopped", remedy=remedy, flow=flow)


def _made_by(c: sa.Connection, who: str, key: CreationKey) -> str | None:
    """The flow that the key has made before, if it is still there. KeyReused when it was for another request."""
    c.execute(sa.text("delete from creation_keys where at < :t"), {"t": _now() - int(KEYS_KEPT * 1e6)})
    row = c.execute(
        sa.text("select digest, flow from creation_keys where who = :w and creation_key = :k"), {"w": who, "k": key.key}
    ).one_or_none()
    if row is None:
        return None
    if row.digest != key.digest:
        raise KeyReused(f"the key was used for another request, which made flow {row.flow}")
    if _find(c, row.flow) is None:
        c.execute(sa.text("delete from creation_keys where who = :w and creation_key = :k"), {"w": who, "k": key.key})
        return None
    return str(row.flow)


def _revise(c: sa.Connection, draft: Draft, number: int, who: str, why: str | None, now: int) -> None:
    c.execute(
        sa.text("insert into definition_revisions (flow, revision, definition, at, who, why) values (:f, :r, :d, :t, :w, :y)"),
        {"f": draft.flow, "r": number, "d": json.dumps(draft.definition), "t": now, "w": who, "y": why},
    )
    c.execute(
        sa.text("delete from definition_revisions where flow = :f and revision <= :r"), {"f": draft.flow, "r": number - REVISIONS}
    )
    c.execute(sa.text("delete from flow_labels where flow = :f"), {"f": draft.flow})
    for label, value in draft.labels.items():
        c.execute(
            sa.text("insert into flow_labels (flow, label, value) values (:f, :l, :v)"),
            {"f": draft.flow, "l": label, "v": value},
        )


def _require(c: sa.Connection, flow: str) -> Stored:
    found = _find(c, flow)
    if found is None:
        raise FlowUnknown(f"no flow named {flow} was created here", flow=flow)
    return found


def _find(c: sa.Connection, flow: str) -> Stored | None:
    row = c.execute(
        sa.text(
            "select flow, definition, revision, created_at, created_by, updated_at, updated_by from definitions where flow = :f"
        ),
        {"f": flow},
    ).one_or_none()
    return Stored(**{**row._mapping, "definition": json.loads(row.definition)}) if row is not None else None


def _now() -> int:
    return time.time_ns() // 1000
