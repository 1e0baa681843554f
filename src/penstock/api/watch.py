"""Events over REST: page by page, or as a stream that stays open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.api.access import Asking, Serving
from penstock.api.limits import Watchers
from penstock.api.problems import answer
from penstock.control.answers import EventPage
from penstock.control.caller import Caller
from penstock.control.service import MOST_EVENTS, Service
from penstock.control.watching import ADMITTED, LOOK, SHOWN_APART
from penstock.errors import PenstockError, TooManyRequests

router = APIRouter(prefix="/v1", tags=["events"])

FlowQuery = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,63}$", description="Only of this flow.")]
SIGN_OF_LIFE = 15.0


@router.get("/events", operation_id="listEvents")
def events(
    asking: Asking,
    serving: Serving,
    flow: FlowQuery = None,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_EVENTS)] = 100,
) -> EventPage:
    """What happened to flows after an event, the oldest first."""
    return serving.events(asking, flow=flow, after=after, limit=limit)


@router.get(
    "/watch",
    operation_id="watch",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "A stream of events."}},
)
async def watch(
    request: Request,
    asking: Asking,
    serving: Serving,
    flow: FlowQuery = None,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="Begin after this event; else with what comes next.")] = None,
    last_event: Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,15}$")] = None,
    seconds: Annotated[float, Query(gt=0, le=86400, description="When to end.")] = 3600,
) -> StreamingResponse:
    """Server-sent events: `event` for what happens to flows, and `flow` when state or progress of a named flow has changed."""
    began = int(last_event) if last_event is not None else after
    if began is None:
        began = await asyncio.to_thread(serving.newest_event, asking)
    await asyncio.to_thread(serving.events, asking, flow=flow, after=began, limit=1)
    return _Watched(request.app.state.watchers, _stream(request, asking, serving, flow, began, seconds))


class _Watched(StreamingResponse):
    """A stream that counts among those that watch from its first byte to its last, or says that there is no room."""

    def __init__(self, watchers: Watchers, content: AsyncIterator[str]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._watchers = watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        try:
            with self._watchers.taken():
                await super().__call__(scope, receive, send)
        except TooManyRequests as error:
            await answer(error)(scope, receive, send)


async def _stream(
    request: Request, asking: Caller, serving: Service, flow: str | None, after: int, seconds: float
) -> AsyncIterator[str]:
    watchers, loop = request.app.state.watchers, asyncio.get_running_loop()
    ends, silent_since, admitted, last = loop.time() + seconds, loop.time(), loop.time(), ""
    yield ": penstock\n\n"
    while loop.time() < ends and not watchers.closing and not await request.is_disconnected():
        try:
            if loop.time() - admitted > ADMITTED:
                await asyncio.to_thread(request.state.admit)
                admitted = loop.time()
            page = await asyncio.to_thread(serving.events, asking, flow=flow, after=after, limit=100)
            found = await asyncio.to_thread(serving.flows.find, asking, flow) if flow is not None else None
        except PenstockError as error:
            # The flow was deleted, the token revoked, or the ledger is away: whoever watches comes again and is told.
            yield _event("error", error.to_data())
            return
        lines = [_event("event", event.model_dump(mode="json"), event.id) for event in page.events]
        after = page.last
        if found is not None:
            now = found.model_dump_json(exclude=SHOWN_APART)
            if now != last:
                lines.append(f"event: flow\ndata: {now}\n\n")
                last = now
        if lines:
            silent_since = loop.time()
            yield "".join(lines)
        elif loop.time() - silent_since > SIGN_OF_LIFE:
            silent_since = loop.time()
            yield ": still here\n\n"
        await asyncio.sleep(LOOK)


def _event(kind: str, data: object, number: int | None = None) -> str:
    known = f"id: {number}\n" if number is not None else ""
    return f"{known}event: {kind}\ndata: {json.dumps(data)}\n\n"
