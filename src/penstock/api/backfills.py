"""Backfills over REST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from penstock.api.access import Asking, Serving
from penstock.api.flows import FlowName
from penstock.control.backfill_service import MOST
from penstock.control.requests import BackfillStart
from penstock.control.source_answers import BackfillAnswer, BackfillList

router = APIRouter(prefix="/v1/flows/{name}/backfills", tags=["backfills"])

Number = Annotated[int, Path(ge=1, le=2**53)]


@router.post("", status_code=201, operation_id="startBackfill")
def start(asking: Asking, serving: Serving, name: FlowName, asked: BackfillStart) -> BackfillAnswer:
    """Read tables again while they go on streaming; the flow's worker does it, at once or when it next runs."""
    return serving.backfills.start(asking, name, asked)


@router.get("", operation_id="listBackfills")
def page(
    asking: Asking,
    serving: Serving,
    name: FlowName,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
) -> BackfillList:
    """The flow's backfills, the newest first, its first load included, page by page."""
    return serving.backfills.page(asking, name, before=before, limit=limit)


@router.get("/{number}", operation_id="getBackfill")
def find(asking: Asking, serving: Serving, name: FlowName, number: Number) -> BackfillAnswer:
    """One backfill: each table's progress, and what every destination has of it."""
    return serving.backfills.find(asking, name, number)


@router.post("/{number}/pause", operation_id="pauseBackfill")
def pause(asking: Asking, serving: Serving, name: FlowName, number: Number) -> BackfillAnswer:
    """Read and deliver no more of it for now."""
    return serving.backfills.wish(asking, "pause", name, number)


@router.post("/{number}/resume", operation_id="resumeBackfill")
def resume(asking: Asking, serving: Serving, name: FlowName, number: Number) -> BackfillAnswer:
    """Go on at its unfinished chunks."""
    return serving.backfills.wish(asking, "resume", name, number)


@router.post("/{number}/cancel", operation_id="cancelBackfill")
def cancel(asking: Asking, serving: Serving, name: FlowName, number: Number) -> BackfillAnswer:
    """End it for good: rows that were delivered stay, the others do not come."""
    return serving.backfills.wish(asking, "cancel", name, number)
