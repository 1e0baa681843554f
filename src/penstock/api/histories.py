"""Histories of flows over REST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from penstock.api.access import Asking, Serving
from penstock.api.flows import FlowName
from penstock.control.histories import MOST
from penstock.control.history_answers import CheckpointList, SchemaList

router = APIRouter(prefix="/v1/flows/{name}", tags=["flows"])

Destination = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,63}$", description="Only of this destination.")]
Table = Annotated[str | None, Query(max_length=255, description="Only tables that fit: public.orders, public.*")]


@router.get("/checkpoints", operation_id="listCheckpoints")
def checkpoints(
    asking: Asking,
    serving: Serving,
    name: FlowName,
    destination: Destination = None,
    limit: Annotated[int, Query(ge=0, le=MOST, description="How many epochs that moved them.")] = 0,
) -> CheckpointList:
    """How far each destination has come and, by `limit`, the newest epochs that brought it there."""
    return serving.histories.checkpoints(asking, name, destination=destination, limit=limit)


@router.get("/schemas", operation_id="listSchemas")
def schemas(
    asking: Asking,
    serving: Serving,
    name: FlowName,
    table: Table = None,
    at: Annotated[str | None, Query(max_length=32, description="Those in force at this position: 0/16B6C50")] = None,
) -> SchemaList:
    """Every version of the flow's tables that its journal knows, with the position since when; or those in force at one."""
    return serving.histories.schemas(asking, name, table=table, at=at)
