"""The service of flows: created, changed, looked at, listed, deleted."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.control.answers import (
    AcknowledgementAnswer,
    DestinationAnswer,
    EventAnswer,
    FlowAnswer,
    FlowPage,
    FlowSummary,
    JournalAnswer,
    OpenLoad,
    RevisionAnswer,
    RevisionList,
)
from penstock.control.caller import Caller
from penstock.control.cleanup import Cleanup
from penstock.control.drafts import draft, shown
from penstock.control.health import health
from penstock.control.lifecycle import reload_worker, worker_of
from penstock.control.overview import Overview, current, reason_of, state_of
from penstock.control.premises import Premises
from penstock.control.reconfiguring import Reconfiguring
from penstock.control.requests import CleanupRequest, FlowCreation, FlowUpdate
from penstock.control.stored import placed, stored_flow
from penstock.control.upkeep_answers import CleanupAnswer, ServerObject
from penstock.core.flow import Flow
from penstock.core.secret import mask
from penstock.engine import picture
from penstock.errors import FlowChanged, FlowInvalid, FlowUnknown, RequestRefused, SourceError, TransitionRefused
from penstock.ledger.definitions import CreationKey, Stored, refuse_unless_stopped
from penstock.ledger.lifecycle import Event, Wish
from penstock.ledger.register import Entry, Selector

MOST = 500
"""The largest page."""
_BATCH = 200
RELOAD_PATIENCE = 10.0
MOST_PATIENCE = 60.0
_SELECTOR = re.compile(r"^(?P<not>!)?(?P<label>[^=!,]+?)(?:(?P<test>!?=)(?P<value>[^,]*))?$")


class Flows:
    """Every flow of a ledger; what changes one is recorded with who, when and why."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def create(self, caller: Caller, creation: FlowCreation, key: str | None = None) -> tuple[FlowAnswer, bool]:
        """Keeps a new flow; false when the same key has already made it. FlowInvalid, FlowExists, KeyReused."""
        given = creation.definition.get("name")
        flow = given[:63] if isinstance(given, str) and given.isascii() and given.isprintable() else None
        with self._premises.door(caller, "flow.create", flow, "admin"):
            made = draft(creation.definition, self._premises.secret_files)
            wish = Wish("running" if creation.start else "stopped", caller.name, creation.why, _now())
            token = CreationKey(key, _digest(creation)) if key else None
            definitions = self._premises.ledger.definitions
            stored, new = definitions.create(made, caller.name, creation.why, wish, token)
        return self._answer(stored.flow), new

    def update(self, caller: Caller, name: str, update: FlowUpdate, etag: str | None) -> FlowAnswer:
        """Keeps another definition; state and checkpoints stay, and a running worker takes over what it can."""
        with self._premises.door(caller, "flow.update", name, "admin"):
            change = self._change(caller, name, update, etag)
            applied = self._applied(caller, name) if change() else "nothing has changed"
        return self._answer(name).model_copy(update={"applied": applied})

    def reconfigure(self, caller: Caller, name: str, update: FlowUpdate, etag: str | None, patience: float = 60.0) -> FlowAnswer:
        """The same while the flow is paused, and for good: what a running worker cannot take over it is restarted for.

        A definition that is refused changes nothing and pauses nothing.
        """
        with self._premises.door(caller, "flow.reconfigure", name, "admin") as detail:
            change = self._change(caller, name, update, etag)
            deadline = time.monotonic() + max(0.0, min(patience, MOST_PATIENCE))
            applied = Reconfiguring(self._premises, name, caller.name, update.why, deadline).run(change)
            detail.text = applied
        return self._answer(name).model_copy(update={"applied": applied})

    def delete(
        self, caller: Caller, name: str, *, etag: str | None = None, why: str | None = None, cleanup: bool = True
    ) -> list[str]:
        """Removes a flow that does not run, with its journal and, by `cleanup`, what it made on the server, which is named.

        TransitionRefused or FlowRunning while it is meant to run or does, FlowUnknown, RevisionStale: then nothing has changed.
        Any other error leaves a flow that is being deleted: it is not run nor changed again, and the next deletion goes on.
        """
        with self._premises.door(caller, "flow.delete", name, "admin") as detail:
            stored, entry = self._stored(name), self._entry(name)
            definitions = self._premises.ledger.definitions
            definitions.match(stored, etag)
            refuse_unless_stopped(name, entry.wish, "deleted")
            # A flow that no worker ever had has made nothing.
            made = cleanup and bool(entry.generation)
            flow = self._resolved(name) if made else placed(self._premises.ledger, _bare(stored))
            with Cleanup(flow, self._premises.state) as work:
                if made:
                    # What stands in the way is better found while there is a way back.
                    _look(work)
                assert work.generation is not None
                definitions.begin_delete(name, work.generation, caller.name, etag)
                removed = work.run(remove_state=False) if made else []
                elsewhere = work.remove_state().elsewhere
                stays = f"the journal stays in {elsewhere}" if elsewhere is not None else None
                self._premises.ledger.forget(name)
                definitions.delete(name, caller.name, "; ".join(filter(None, (why, stays))) or None)
            names = [f"{one.kind} {one.name}" for one in removed]
            words = [f"removed {', '.join(names)}"] if names else []
            detail.text = "; ".join([*words, *filter(None, [stays])]) or None
            return names

    def cleanup(self, caller: Caller, name: str, asked: CleanupRequest) -> CleanupAnswer:
        """Removes what a flow that nobody runs has made on the server, and its state here if asked; its definition stays.

        TransitionRefused while it is meant to run, FlowRunning while it does, FlowUnknown, and the source's errors.
        """
        with self._premises.door(caller, "flow.cleanup", name, "admin") as detail:
            self._stored(name)
            refuse_unless_stopped(name, self._entry(name).wish, "cleaned up")
            with Cleanup(self._resolved(name), self._premises.state) as work:
                found, local = work.look()
                removed = work.run(remove_state=asked.remove_state)
            names = [f"{one.kind} {one.name}" for one in removed]
            detail.text = f"removed {', '.join(names)}" if names else None
        stays = [ServerObject(kind=one.kind, name=one.name, why=one.note) for one in found if not one.made]
        if asked.remove_state and local.elsewhere is not None:
            stays.append(ServerObject(kind="journal", name=local.elsewhere, why="it is not here; remove it there"))
        return CleanupAnswer(
            flow=name,
            removed=[ServerObject(kind=one.kind, name=one.name, why=None) for one in removed],
            stays=stays,
            state_removed=asked.remove_state and bool(local),
        )

    def find(self, caller: Caller, name: str) -> FlowAnswer:
        """A flow whole. FlowUnknown."""
        caller.require("viewer")
        return self._answer(name)

    def page(
        self, caller: Caller, *, after: str = "", limit: int = 100, labels: str = "", states: Sequence[str] = ()
    ) -> FlowPage:
        """The first flows after a name that fit, in name order. RequestRefused for a selector that is none."""
        caller.require("viewer")
        selectors = parse_selectors(labels)
        limit = max(1, min(limit, MOST))
        found: list[FlowSummary] = []
        # A state follows from who holds the lease now, which the ledger's database cannot tell: more is read until enough fit.
        size = _BATCH if states else limit + 1
        while len(found) <= limit:
            batch = self._premises.ledger.register.page(after, size, selectors)
            summaries = [self.summary(entry) for entry in batch]
            found += [one for one in summaries if not states or one.state in states]
            if len(batch) < size:
                break
            after = batch[-1].name
        more = len(found) > limit
        return FlowPage(flows=found[:limit], next=found[limit - 1].name if more else None)

    def summary(self, entry: Entry) -> FlowSummary:
        """A flow as lists show it."""
        return FlowSummary.model_validate(self._summary(entry))

    def revisions(self, caller: Caller, name: str, limit: int = 20) -> RevisionList:
        """The flow's definitions, the newest first. FlowUnknown."""
        caller.require("viewer")
        self._stored(name)
        found = self._premises.ledger.definitions.revisions(name, limit)
        return RevisionList(
            revisions=[
                RevisionAnswer(revision=r.revision, at=moment(r.at), who=r.who, why=r.why, definition=shown(r.definition))
                for r in found
            ]
        )

    def _change(self, caller: Caller, name: str, update: FlowUpdate, etag: str | None) -> Callable[[], bool]:
        """What keeps the new definition, and says whether it is another; all that can be refused before is."""
        made = draft(update.definition, self._premises.secret_files)
        if made.flow != name:
            raise FlowChanged(
                f"the definition is of a flow named {made.flow}, not {name}",
                remedy="A flow's state belongs to its name: create another flow, or give this one its name back.",
            )
        before, definitions = self._stored(name), self._premises.ledger.definitions
        definitions.match(before, etag)
        self._refuse_other_source(before, made.definition)
        return lambda: definitions.update(made, caller.name, update.why, etag).revision != before.revision

    def _stored(self, name: str) -> Stored:
        found = self._premises.ledger.definitions.find(name)
        if found is None:
            self._entry(name)
            raise TransitionRefused(
                f"flow {name} runs from a file, and the file is its definition",
                remedy="Change the file, and `penstock flow reload` it.",
                flow=name,
            )
        return found

    def _entry(self, name: str) -> Entry:
        entry = self._premises.ledger.register.find(name)
        if entry is None:
            raise FlowUnknown(f"there is no flow named {name}", flow=name)
        return entry

    def _resolved(self, name: str) -> Flow:
        try:
            return placed(self._premises.ledger, stored_flow(self._premises.ledger, name))
        except FlowInvalid as error:
            error.remedy = "Mend that, so that its slot can be removed; or delete it with cleanup off, and the slot by hand."
            raise

    def _refuse_other_source(self, before: Stored, after: Any) -> None:
        """Where the flow has begun, its positions are those of one source and one journal."""
        if self._premises.ledger.identity(before.flow) is None:
            return
        old, new = _bare(before), Flow.model_validate(after)
        if old.source.type != new.source.type or old.config.journal.url != new.config.journal.url:
            raise FlowChanged(
                f"flow {before.flow} has begun on a {old.source.type} source, with its journal where it is",
                remedy="Delete the flow and create it anew, or give the changed one another name.",
            )

    def _applied(self, caller: Caller, name: str) -> str:
        """What a running worker makes of the new definition."""
        if worker_of(self._premises.leases, name) is None:
            return "counts from the next start"
        try:
            event = reload_worker(self._premises.ledger, self._premises.leases, name, caller.name, RELOAD_PATIENCE)
        except TransitionRefused:
            # It has ended since.
            return "counts from the next start"
        return f"{event.event}: {event.why}" if event is not None else "the worker has not answered yet"

    def _summary(self, entry: Entry) -> dict[str, Any]:
        state = state_of(entry.state, entry.lease, entry.deleting)
        reason = reason_of(entry.reason, entry.deleting)
        alive = entry.lease is not None and not entry.lease.looks_over()
        # A flow that nobody runs has no picture that counts, and most of a long list are such.
        now = picture.read(self._premises.state / "run" / entry.name) if alive else None
        there = current(now) if now is not None and now["generation"] == entry.generation else []
        etag = f"{entry.created_at:x}-{entry.revision}" if entry.created_at is not None else None
        return {
            "name": entry.name,
            "state": state,
            "health": health(state, entry.wish.state, there),
            "reason": mask(reason) if reason else None,
            "wished": entry.wish.state,
            "wished_by": entry.wish.who or None,
            "wished_at": moment(entry.wish.at) if entry.wish.at else None,
            "worker": str(entry.lease.holder) if alive and entry.lease is not None else None,
            "labels": entry.labels,
            "etag": etag,
            "lag_seconds": max((d["lag_seconds"] for d in there), default=None),
        }

    def _answer(self, name: str) -> FlowAnswer:
        premises = self._premises
        entry, stored = self._entry(name), premises.ledger.definitions.find(name)
        definition = placed(premises.ledger, _bare(stored)) if stored is not None else None
        view = Overview(premises.state, opened=(premises.ledger, premises.leases)).view(name, definition, events=20)
        data = view.to_data()
        data["destinations"] = [{**d, "error": shown(d["error"])} for d in data["destinations"]]
        found = self._summary(entry)
        lags = [d.lag_seconds for d in view.destinations if d.lag_seconds is not None]
        return FlowAnswer(
            **{**found, "lag_seconds": max(lags, default=None)},
            definition=shown(stored.definition) if stored is not None else None,
            revision=stored.revision if stored is not None else None,
            created_at=moment(stored.created_at) if stored is not None else None,
            created_by=stored.created_by if stored is not None else None,
            updated_at=moment(stored.updated_at) if stored is not None else None,
            updated_by=stored.updated_by if stored is not None else None,
            destinations=[DestinationAnswer.model_validate(d) for d in data["destinations"]],
            journal=JournalAnswer.model_validate(data["journal"]),
            acknowledgement=AcknowledgementAnswer.model_validate(data["acknowledgement"]),
            source=shown(data["source"]),
            events=[event_answer(name, event) for event in view.events],
            loads=[OpenLoad.model_validate({key: one[key] for key in OpenLoad.model_fields}) for one in view.loads],
        )


def _look(work: Cleanup) -> None:
    """Finds what a deletion will remove on the server; who cannot come there is told of the way without."""
    try:
        work.look()
    except SourceError as error:
        error.remedy = f"{error.remedy} `penstock flow delete --no-cleanup` deletes it and leaves what it made there."
        raise


def event_answer(flow: str, event: Event) -> EventAnswer:
    """An event as the API has it."""
    why = mask(event.why) if event.why else None
    about = {"id": event.id, "flow": flow, "event": event.event, "who": event.who, "generation": event.generation}
    return EventAnswer.model_validate({**about, "at": moment(event.at), "why": why})


def moment(at: int) -> dt.datetime:
    """µs since 1970 as a time."""
    return dt.datetime.fromtimestamp(at / 1e6, dt.UTC)


def parse_selectors(text: str) -> list[Selector]:
    """`team=shop,env!=test,tier,!old` as conditions; RequestRefused."""
    found: list[Selector] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = _SELECTOR.match(part)
        if match is None or (match["not"] and match["test"]):
            remedy = "Write label=value, label!=value, label or !label, with commas between."
            raise RequestRefused(f"{part[:60]!r} is no label selector", remedy=remedy)
        if match["test"]:
            found.append(Selector(match["label"].strip(), "is" if match["test"] == "=" else "is not", match["value"].strip()))
        else:
            found.append(Selector(match["label"].strip(), "not there" if match["not"] else "there"))
    return found


def _bare(stored: Stored) -> Flow:
    """The flow with its references as they stand, also where its journal is to be."""
    return Flow.model_validate(stored.definition)


def _digest(creation: FlowCreation) -> str:
    return hashlib.sha256(json.dumps(creation.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def _now() -> int:
    return int(dt.datetime.now(dt.UTC).timestamp() * 1e6)
