"""Connectors, validation, people and the server itself over REST."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request

from penstock.api.access import Asking, Serving
from penstock.control.answers import (
    AuditPage,
    ConnectorAnswer,
    ConnectorList,
    ServerAnswer,
    TokenList,
    TokenMade,
    ValidationAnswer,
)
from penstock.control.people import MOST
from penstock.control.requests import DefinitionRequest, TokenCreation

router = APIRouter(prefix="/v1")

ConnectorKind = Literal["source", "transform", "format", "destination"]


@router.get("/connectors", operation_id="listConnectors", tags=["connectors"])
def connectors(asking: Asking, serving: Serving) -> ConnectorList:
    """Every installed connector."""
    return serving.catalog.connectors(asking)


@router.get("/connectors/{kind}/{name}", operation_id="getConnector", tags=["connectors"])
def connector(
    asking: Asking, serving: Serving, kind: ConnectorKind, name: Annotated[str, Path(max_length=63)]
) -> ConnectorAnswer:
    """One connector, with its options as JSON Schema."""
    return serving.catalog.connector(asking, kind, name)


@router.post("/validate", operation_id="validate", tags=["flows"])
def validate(asking: Asking, serving: Serving, request: DefinitionRequest) -> ValidationAnswer:
    """Every problem of a definition at once, each with its path. Nothing is kept, and no reference is followed."""
    return serving.catalog.validate(asking, request.definition)


@router.get("/server", operation_id="getServer", tags=["server"])
def server(asking: Asking, serving: Serving, request: Request) -> ServerAnswer:
    """What runs here."""
    launcher, spark = request.app.state.runs()
    return serving.server(asking, launcher, spark)


@router.post("/tokens", status_code=201, operation_id="createToken", tags=["people"])
def create_token(asking: Asking, serving: Serving, creation: TokenCreation) -> TokenMade:
    """Make a token; its text is answered this once."""
    return serving.people.create(asking, creation)


@router.get("/tokens", operation_id="listTokens", tags=["people"])
def tokens(asking: Asking, serving: Serving) -> TokenList:
    """Every token, without its text."""
    return serving.people.all(asking)


@router.delete("/tokens/{number}", status_code=204, operation_id="revokeToken", tags=["people"])
def revoke(asking: Asking, serving: Serving, number: Annotated[str, Path(pattern=r"^[0-9a-f]{12}$")]) -> None:
    """Make a token worthless."""
    serving.people.revoke(asking, number)


@router.get("/audit", operation_id="listAudit", tags=["people"])
def audit(
    asking: Asking,
    serving: Serving,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
    flow: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,63}$")] = None,
) -> AuditPage:
    """Who asked for what, and what became of it, the newest first."""
    return serving.people.audit(asking, before=before, limit=limit, flow=flow)
