"""Flows over REST."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Response

from penstock.api.access import Asking, Serving
from penstock.api.limits import slow, waiting
from penstock.control.answers import CommandAnswer, ExaminationAnswer, FlowAnswer, FlowPage, RevisionList
from penstock.control.flows import MOST
from penstock.control.requests import FlowCreation, FlowUpdate, Reason
from penstock.errors import RequestRefused

router = APIRouter(prefix="/v1/flows", tags=["flows"])

SLOW, WAITING = [Depends(slow)], [Depends(waiting)]

FlowName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,63}$", description="The flow's name.")]
State = Literal["created", "starting", "running", "paused", "stopped", "failed", "silent", "gone", "deleting"]
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description="The etag of the revision that is meant; another one is answered with 412."),
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="Makes repetitions of one creation one; remembered for a day.",
    ),
]
Wait = Annotated[float, Query(ge=0, le=60, description="Seconds to wait until it has come true.")]


@router.post("", status_code=201, operation_id="createFlow", responses={200: {"model": FlowAnswer}})
def create(asking: Asking, serving: Serving, creation: FlowCreation, response: Response, key: Key = None) -> FlowAnswer:
    """Keep a new flow. With a key that has made it before, the flow is answered as it is now, with 200."""
    made, new = serving.flows.create(asking, creation, key)
    response.status_code = 201 if new else 200
    response.headers["ETag"] = f'"{made.etag}"'
    response.headers["Location"] = f"/v1/flows/{made.name}"
    return made


@router.get("", operation_id="listFlows")
def page(
    asking: Asking,
    serving: Serving,
    after: Annotated[str, Query(max_length=63, pattern=r"^[A-Za-z0-9_-]*$", description="`next` of the page before.")] = "",
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
    labels: Annotated[str, Query(max_length=1000, description="`team=shop,env!=test,tier,!old`")] = "",
    state: Annotated[list[State] | None, Query(description="Only flows in one of these states.")] = None,
) -> FlowPage:
    """Flows in name order, page by page."""
    return serving.flows.page(asking, after=after, limit=limit, labels=labels, states=state or ())


@router.get("/{name}", operation_id="getFlow")
def find(asking: Asking, serving: Serving, name: FlowName, response: Response) -> FlowAnswer:
    """A flow whole: its definition, how far each destination is, and what happened last."""
    found = serving.flows.find(asking, name)
    if found.etag is not None:
        response.headers["ETag"] = f'"{found.etag}"'
    return found


@router.put("/{name}", operation_id="updateFlow", dependencies=SLOW)
def update(
    asking: Asking, serving: Serving, name: FlowName, update: FlowUpdate, response: Response, if_match: IfMatch = None
) -> FlowAnswer:
    """Replace the definition; state and checkpoints stay. A running worker takes over what it can, as `applied` says."""
    done = serving.flows.update(asking, name, update, _etag(if_match))
    response.headers["ETag"] = f'"{done.etag}"'
    return done


@router.post("/{name}/reconfigure", operation_id="reconfigureFlow", dependencies=SLOW)
def reconfigure(
    asking: Asking,
    serving: Serving,
    name: FlowName,
    update: FlowUpdate,
    response: Response,
    if_match: IfMatch = None,
    wait: Wait = 60,
) -> FlowAnswer:
    """Pause, replace the definition, resume. What a running worker cannot take over it is restarted for; `applied` says so."""
    done = serving.flows.reconfigure(asking, name, update, _etag(if_match), wait)
    response.headers["ETag"] = f'"{done.etag}"'
    return done


@router.delete("/{name}", status_code=204, operation_id="deleteFlow", dependencies=SLOW)
def delete(
    asking: Asking,
    serving: Serving,
    name: FlowName,
    if_match: IfMatch = None,
    cleanup: Annotated[bool, Query(description="Whether slot and publication on the server go too.")] = True,
    why: Annotated[str | None, Query(max_length=1000, pattern=r"^[^\x00]*$")] = None,
) -> None:
    """Remove a stopped flow with its journal and, by `cleanup`, what it made on the server."""
    serving.flows.delete(asking, name, etag=_etag(if_match), why=why, cleanup=cleanup)


@router.get("/{name}/revisions", operation_id="listRevisions")
def revisions(asking: Asking, serving: Serving, name: FlowName, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> RevisionList:
    """Every kept definition of the flow, the newest first."""
    return serving.flows.revisions(asking, name, limit)


@router.post("/{name}/start", operation_id="startFlow", dependencies=WAITING)
def start(asking: Asking, serving: Serving, name: FlowName, reason: Reason, wait: Wait = 0) -> CommandAnswer:
    """Let a created, stopped or failed flow run."""
    return serving.commands.give(asking, "start", name, why=reason.why, patience=wait)


@router.post("/{name}/pause", operation_id="pauseFlow", dependencies=WAITING)
def pause(asking: Asking, serving: Serving, name: FlowName, reason: Reason, wait: Wait = 0) -> CommandAnswer:
    """Deliver nothing for the time being; the source is still captured."""
    return serving.commands.give(asking, "pause", name, why=reason.why, patience=wait)


@router.post("/{name}/resume", operation_id="resumeFlow", dependencies=WAITING)
def resume(asking: Asking, serving: Serving, name: FlowName, reason: Reason, wait: Wait = 0) -> CommandAnswer:
    """Deliver again after a pause."""
    return serving.commands.give(asking, "resume", name, why=reason.why, patience=wait)


@router.post("/{name}/stop", operation_id="stopFlow", dependencies=WAITING)
def stop(asking: Asking, serving: Serving, name: FlowName, reason: Reason, wait: Wait = 0) -> CommandAnswer:
    """End the flow's worker in order; none is started before `start`."""
    return serving.commands.give(asking, "stop", name, why=reason.why, patience=wait)


@router.post("/{name}/run", operation_id="runFlowOnce", dependencies=WAITING)
def run(asking: Asking, serving: Serving, name: FlowName, reason: Reason, wait: Wait = 0) -> CommandAnswer:
    """Run a stopped flow until nothing is left; then it is stopped again."""
    return serving.commands.give(asking, "run", name, why=reason.why, patience=wait)


@router.post("/{name}/doctor", operation_id="examineFlow", dependencies=SLOW)
def doctor(asking: Asking, serving: Serving, name: FlowName) -> ExaminationAnswer:
    """Look at source, destinations and worker: what stands in the way, each with what mends it. Changes nothing."""
    return serving.catalog.doctor(asking, name)


def _etag(header: str | None) -> str | None:
    """The revision that an If-Match header means; None when any will do."""
    if header is None or header.strip() == "*":
        return None
    text = header.strip()
    if len(text) < 3 or not (text.startswith('"') and text.endswith('"')):
        raise RequestRefused("If-Match is no etag", remedy='Send the ETag as it was answered, in quotes: If-Match: "…".')
    return text[1:-1]
