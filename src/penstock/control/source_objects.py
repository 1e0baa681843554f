"""What a flow has on its source's server, as answers: its publication with its tables, and the slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from penstock.control.backfills import LoadDesk
from penstock.control.objects import source_part
from penstock.control.source_answers import (
    CandidateAnswer,
    CandidateList,
    PublicationAnswer,
    PublicationChange,
    PublishedTableAnswer,
    SlotAnswer,
    SlotDropped,
    SlotList,
)
from penstock.core.flow import Flow
from penstock.core.options import format_size
from penstock.core.position import format_lsn
from penstock.ledger.ledger import Ledger


def publication(flow: Flow) -> PublicationAnswer:
    """The flow's publication and the tables that it sends. PublicationMissing."""
    with source_part(flow, "publication") as publishing:
        found, tables = publishing.published()
    return PublicationAnswer(
        name=found.name,
        owner=found.owner,
        made_by_flow=found.made_here,
        all_tables=found.everything,
        schemas=list(found.schemas),
        operations=list(found.operations),
        via_root=found.via_root,
        tables=[PublishedTableAnswer.model_validate({**_table(t), "columns": list(t.columns or ())}) for t in tables],
    )


def candidates(flow: Flow, patterns: Sequence[str] = ()) -> CandidateList:
    """The tables that are or could be published, and fit. TablesMissing."""
    with source_part(flow, "publication") as publishing:
        found, notes = publishing.discover(patterns)
        name = publishing.name
    return CandidateList(publication=name, tables=[CandidateAnswer.model_validate(_table(t)) for t in found], notes=notes)


def add_tables(
    flow: Flow,
    state: Path,
    tables: Sequence[str],
    *,
    snapshot: bool = False,
    opened: Ledger | None = None,
    who: str | None = None,
) -> PublicationChange:
    """Adds tables to the publication or, if one cannot be, none; with `snapshot` their rows are loaded first."""
    with source_part(flow, "publication") as publishing:
        if not snapshot:
            return _change(publishing.name, publishing.add(tables))
        found, _ = publishing.discover(tables)
        new = [(t.schema, t.name) for t in found if not t.published and not t.problem]
        with LoadDesk(flow.name, state, opened, who) as desk:
            # First, so that no change of theirs is delivered before their rows.
            number = desk.ask([".".join(n) for n in new], join=True, rules={"names": new}) if new else None
            if number is not None:
                desk.wait_taken(number)
            return _change(publishing.name, publishing.add(tables, with_rows=True), backfill=number)


def remove_tables(flow: Flow, tables: Sequence[str]) -> PublicationChange:
    """Takes tables out of the publication; the tables themselves are not touched."""
    with source_part(flow, "publication") as publishing:
        return _change(publishing.name, publishing.remove(tables))


def sync_publication(flow: Flow, mode: Literal["add", "sync"] | None = None, *, dry_run: bool = False) -> PublicationChange:
    """Brings the publication in line with the flow's patterns; makes it if there is none."""
    with source_part(flow, "publication") as publishing:
        return _change(publishing.name, publishing.sync(mode, dry=dry_run), dry_run=dry_run)


def slots(flow: Flow) -> SlotList:
    """Every slot of the server; the flow's own is marked."""
    with source_part(flow, "slots") as found:
        return SlotList(own=found.own, slots=[_slot(one) for one in found.all()])


def slot(flow: Flow, name: str | None = None) -> SlotAnswer:
    """One slot, the flow's own unless another is named. SlotMissing."""
    with source_part(flow, "slots") as found:
        return _slot(found.show(name))


def drop_slot(flow: Flow, name: str | None = None) -> SlotDropped:
    """Drops a slot that nobody reads from. SlotMissing, SlotInUse."""
    with source_part(flow, "slots") as found:
        answer = _slot(found.free(name))
        found.drop(answer.name)
    return SlotDropped(slot=answer, lost=loss(answer))


def loss(slot: SlotAnswer) -> str:
    """What is lost with a slot, in words."""
    after = "whoever reads by it has to begin anew"
    if slot.confirmed is not None:
        after = f"changes after {slot.confirmed} can no longer be had ({size(slot.lag_bytes)} of log)"
    freed = f"; {size(slot.retained_bytes)} of WAL may go" if slot.retained_bytes is not None else ""
    begin = "; a flow with a journal cannot go on without it" if slot.own else ""
    return f"{after}{freed}{begin}"


def size(count: int | None) -> str:
    """A number of bytes for people."""
    return format_size(count) if count is not None else "unknown"


def _slot(figures: Any) -> SlotAnswer:
    data = asdict(figures)
    for key in ("confirmed", "restart"):
        data[key] = format_lsn(data[key]) if data[key] is not None else None
    return SlotAnswer.model_validate(data)


def _table(found: Any) -> dict[str, Any]:
    data = asdict(found)
    return {**data, "table_schema": data.pop("schema"), "table": data.pop("name"), "key": list(data.get("key", ()))}


def _change(name: str, change: Any, *, dry_run: bool = False, backfill: int | None = None) -> PublicationChange:
    data = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(change).items()}
    return PublicationChange.model_validate({"publication": name, "dry_run": dry_run, "backfill": backfill, **data})
