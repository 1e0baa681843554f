"""Health and readiness, for whatever watches over the server; no token is needed and nothing is told that needs one."""

from __future__ import annotations

from fastapi import APIRouter, Response

from penstock.api.access import Serving
from penstock.control.answers import HealthAnswer
from penstock.errors import LedgerError

router = APIRouter(tags=["server"])


@router.get("/healthz", operation_id="health")
async def health() -> HealthAnswer:
    """Whether the server answers at all."""
    # On no thread of the pool: that all of them are busy is no reason to be ended.
    return HealthAnswer(status="ok")


@router.get("/readyz", operation_id="readiness", responses={503: {"model": HealthAnswer}})
def ready(serving: Serving, response: Response) -> HealthAnswer:
    """Whether the server can do its work: the ledger answers."""
    try:
        serving.premises.ledger.lifecycle.newest()
    except LedgerError:
        response.status_code = 503
        return HealthAnswer(status="unavailable", reason="the ledger does not answer")
    return HealthAnswer(status="ok")
