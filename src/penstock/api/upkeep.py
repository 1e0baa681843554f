"""The upkeep of flows over REST."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.access import Asking, Serving
from penstock.api.flows import SLOW, FlowName, Wait
from penstock.control.requests import CleanupRequest, Rewinding, StagingResolution, TableRelease
from penstock.control.upkeep_answers import CleanupAnswer, ReleaseAnswer, ReloadAnswer, ResolutionAnswer, RewindAnswer

router = APIRouter(prefix="/v1/flows/{name}", tags=["upkeep"])


@router.post("/reload", operation_id="reloadFlow", dependencies=SLOW)
def reload(asking: Asking, serving: Serving, name: FlowName, wait: Wait = 60) -> ReloadAnswer:
    """Have the flow's worker read its definition and secrets again; a refusal changes nothing."""
    return serving.upkeep.reload(asking, name, patience=wait)


@router.post("/cleanup", operation_id="cleanUpFlow", dependencies=SLOW)
def cleanup(asking: Asking, serving: Serving, name: FlowName, asked: CleanupRequest) -> CleanupAnswer:
    """Remove slot and publication that a stopped flow has made, and its state here if asked; the definition stays."""
    return serving.flows.cleanup(asking, name, asked)


@router.post("/rewind", operation_id="rewindDestination", dependencies=SLOW)
def rewind(asking: Asking, serving: Serving, name: FlowName, asked: Rewinding) -> RewindAnswer:
    """Send a destination again, from the journal, what it has had since a position; the flow must not run."""
    return serving.upkeep.rewind(asking, name, asked)


@router.post("/release", operation_id="releaseTable")
def release(asking: Asking, serving: Serving, name: FlowName, asked: TableRelease) -> ReleaseAnswer:
    """Release a quarantined table: the worker brings it what it has missed. To leave that out takes an admin."""
    return serving.upkeep.release(asking, name, asked)


@router.post("/resolve-staging", operation_id="resolveStaging", dependencies=SLOW)
def resolve(asking: Asking, serving: Serving, name: FlowName, asked: StagingResolution, wait: Wait = 60) -> ResolutionAnswer:
    """Merge staging tables whose loads have ended into their tables, and empty them; a repetition has nothing to do."""
    return serving.upkeep.resolve(asking, name, asked.destination, asked.tables, patience=wait)
