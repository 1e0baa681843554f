"""Limits hold over REST and gRPC: who watches and who waits is counted, admitted anew, and leaves room for others."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.api.limits import MOST_SLOW
from penstock.client import Client
from penstock.control.caller import Caller
from penstock.control.lifecycle import RUNNER
from penstock.control.requests import TokenCreation
from penstock.engine.lease import holding
from penstock.errors import FlowUnknown, TokenMissing, TooManyRequests
from tests.api.conftest import TRANSPORTS, Site
from tests.control.definitions import definition
from tests.processes import wait_until


def test_only_so_many_watch_at_once_and_one_that_ends_makes_room(site: Site, client: Client) -> None:
    client.create_flow(definition())
    others = [site.client(transport) for transport in TRANSPORTS]
    open_streams = [other.watch("shop", seconds=60) for other in others]
    for stream in open_streams:
        next(stream)
    with pytest.raises(TooManyRequests):
        next(client.watch("shop", seconds=60))
    open_streams[0].close()  # type: ignore[attr-defined]

    def has_room() -> bool:
        try:
            return next(client.watch("shop", seconds=5)) is not None
        except TooManyRequests:
            return False

    wait_until(has_room, 20)
    open_streams[1].close()  # type: ignore[attr-defined]
    for other in others:
        other.close()


def test_of_many_who_come_at_once_only_so_many_watch(site: Site, client: Client) -> None:
    client.create_flow(definition())
    transport = "grpc" if client._transport.url.startswith("grpc") else "rest"
    together, outcomes = threading.Barrier(24), list[str]()

    def come() -> None:
        with site.client(transport) as one:
            stream = one.watch("shop", seconds=60)
            together.wait(60)
            try:
                next(stream)
            except TooManyRequests:
                outcomes.append("refused")
            else:
                outcomes.append("watches")
            together.wait(60)
            stream.close()  # type: ignore[attr-defined]

    with ThreadPoolExecutor(24) as pool:
        for done in [pool.submit(come) for _ in range(24)]:
            done.result()
    assert sorted(outcomes) == ["refused"] * 22 + ["watches"] * 2


@pytest.mark.slow
def test_who_watches_with_a_token_that_is_revoked_is_told(site: Site, client: Client) -> None:
    client.create_flow(definition())
    transport = "grpc" if client._transport.url.startswith("grpc") else "rest"
    ann = Caller("ann", "admin")
    made = site.service.people.create(ann, TokenCreation(name="eve", role="viewer"))
    with site.client(transport, made.token) as eve:
        stream = eve.watch("shop", seconds=45)
        next(stream)
        site.service.people.revoke(ann, made.id)
        with pytest.raises(TokenMissing):
            list(stream)


def test_who_waits_over_one_protocol_takes_a_place_of_all_of_them(site: Site, client: Client) -> None:
    client.create_flow(definition())
    # The others wait over the other protocol, as far as this one can tell.
    with contextlib.ExitStack() as places:
        for _ in range(MOST_SLOW):
            places.enter_context(site.slow.taken())
        for slow in (
            lambda: client.command("start", "shop", wait=5),
            lambda: client.reload("shop", wait=0),
            lambda: client.rewind("shop", "log", "oldest"),
            lambda: client.reconfigure_flow("shop", definition(parallelism=2), wait=0),
        ):
            with pytest.raises(TooManyRequests):
                slow()
        assert client.command("start", "shop").changed
    with pytest.raises(FlowUnknown):
        client.rewind("shop", "log", "oldest")


def test_who_may_not_ask_takes_nobodys_place(site: Site, client: Client) -> None:
    client.create_flow(definition())
    site.service.people.create(Caller("ann", "admin"), TokenCreation(name="eve", role="viewer"))
    with contextlib.ExitStack() as places:
        for _ in range(MOST_SLOW):
            places.enter_context(site.slow.taken())
        for refused in (lambda: client.reload("shop", wait=0), lambda: client.command("start", "shop", wait=5)):
            with pytest.raises(TokenMissing):
                refused()


@pytest.mark.slow
def test_requests_that_wait_leave_room_for_others_and_for_health(site: Site, client: Client) -> None:
    client.create_flow(definition())
    transport = "grpc" if client._transport.url.startswith("grpc") else "rest"

    def come() -> bool:
        with site.client(transport) as one:
            try:
                # Somebody is there to start a worker, and does not.
                return not one.command("start", "shop", wait=12).settled
            except TooManyRequests:
                return False

    with holding(site.service.premises.path, RUNNER, "runner"), ThreadPoolExecutor(48) as pool:
        asked = [pool.submit(come) for _ in range(48)]
        wait_until(lambda: sum(one.done() for one in asked) == 24, 10)
        began = time.monotonic()
        assert site.request("GET", "/healthz")[0] == site.request("GET", "/readyz")[0] == 200
        assert client.command("stop", "shop").wished == "stopped"
        assert time.monotonic() - began < 5
        assert sum(one.result() for one in asked) <= 24
