"""Publications and slots over REST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from penstock.api.access import Asking, Serving
from penstock.api.flows import SLOW, FlowName
from penstock.control.requests import PublicationSync, SlotChoice, TableAddition, TableChoice, Word
from penstock.control.source_answers import CandidateList, PublicationAnswer, PublicationChange, SlotAnswer, SlotDropped, SlotList

router = APIRouter(prefix="/v1/flows/{name}", dependencies=SLOW)

Slot = Annotated[str | None, Query(pattern=r"^[a-z0-9_]{1,63}$", description="Another slot than the flow's own.")]


@router.get("/publication", operation_id="getPublication", tags=["publications"])
def publication(asking: Asking, serving: Serving, name: FlowName) -> PublicationAnswer:
    """What the flow's publication sends, with column lists and row filters."""
    return serving.sources.publication(asking, name)


@router.get("/publication/candidates", operation_id="discoverTables", tags=["publications"])
def candidates(
    asking: Asking,
    serving: Serving,
    name: FlowName,
    tables: Annotated[list[Word] | None, Query(max_length=100, description="Only tables that fit.")] = None,
) -> CandidateList:
    """Tables that are or could be published: key, identity, estimated size."""
    return serving.sources.candidates(asking, name, tables or ())


@router.post("/publication/add", operation_id="addTables", tags=["publications"])
def add(asking: Asking, serving: Serving, name: FlowName, asked: TableAddition) -> PublicationChange:
    """Add tables; nothing is changed when one of them cannot be."""
    return serving.sources.add(asking, name, asked)


@router.post("/publication/remove", operation_id="removeTables", tags=["publications"])
def remove(asking: Asking, serving: Serving, name: FlowName, asked: TableChoice) -> PublicationChange:
    """Take tables out; the tables themselves are not touched."""
    return serving.sources.remove(asking, name, asked)


@router.post("/publication/sync", operation_id="syncPublication", tags=["publications"])
def sync(asking: Asking, serving: Serving, name: FlowName, asked: PublicationSync) -> PublicationChange:
    """Bring the publication in line with the flow's patterns; makes it if there is none."""
    return serving.sources.sync(asking, name, asked)


@router.get("/slots", operation_id="listSlots", tags=["slots"])
def slots(asking: Asking, serving: Serving, name: FlowName) -> SlotList:
    """Every slot of the source's server; the flow's own is marked."""
    return serving.sources.slots(asking, name)


@router.get("/slot", operation_id="getSlot", tags=["slots"])
def slot(asking: Asking, serving: Serving, name: FlowName, slot: Slot = None) -> SlotAnswer:
    """All that the server says about the flow's slot, or another."""
    return serving.sources.slot(asking, name, SlotChoice(slot=slot))


@router.delete("/slot", operation_id="dropSlot", tags=["slots"])
def drop(asking: Asking, serving: Serving, name: FlowName, slot: Slot = None) -> SlotDropped:
    """Drop a slot that nobody reads from: what it has not delivered is lost."""
    return serving.sources.drop_slot(asking, name, SlotChoice(slot=slot))
