"""Watching: what happens to flows, while it happens, for whoever can wait for it on a thread of his own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from penstock.control.answers import EventAnswer, FlowAnswer
from penstock.control.caller import Caller
from penstock.control.service import Service

LOOK = 0.5
ADMITTED = 5.0
"""Seconds after which it is asked again whether who watches still may: a token may be revoked meanwhile."""
SHOWN_APART = {"definition", "events"}
"""What a watched flow comes without: the one seldom changes, the others come by themselves."""


def watch(
    service: Service,
    caller: Caller,
    flow: str | None,
    after: int | None,
    seconds: float,
    wanted: Callable[[], bool] = lambda: True,
) -> Iterator[EventAnswer | FlowAnswer]:
    """Events from now on, or after that one; with a flow also its state and progress whenever they change. FlowUnknown."""
    last = after if after is not None else service.newest_event(caller)
    ends, before = time.monotonic() + seconds, ""
    while time.monotonic() < ends and wanted():
        page = service.events(caller, flow=flow, after=last, limit=100)
        last = page.last
        yield from page.events
        if flow is not None:
            found = service.flows.find(caller, flow)
            now = found.model_dump_json(exclude=SHOWN_APART)
            if now != before:
                before = now
                yield found
        time.sleep(LOOK)
