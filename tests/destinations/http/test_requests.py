"""What a request looks like: its body, its headers, its key, its signature; and that a replay repeats it."""

from __future__ import annotations

import hashlib
import hmac
import json

import pyarrow as pa
import pytest

from penstock.errors import DestinationUnreachable
from penstock.formats.json.decoder import decode
from penstock.formats.json.format import JsonFormat
from tests.batches import batch, insert, table, update
from tests.destinations.http.receiver import Arrived, Receiver, Reply, reply
from tests.destinations.http.sending import epoch, send, writer
from tests.table_model import ONE

ROWS = [insert({"id": n, "v": n, "big": f"b\u2028\n{n}", "large": None}, ordinal=n) for n in range(1, 8)]


def test_a_change_is_one_request_with_its_json_object_and_its_event_id() -> None:
    with Receiver() as receiver:
        receipt = send(receiver, ROWS, headers={"X-Team": "shop", "Authorization": "Bearer t"})
    assert {request.method for request in receiver.arrived} == {"POST"}
    assert sorted(request.body for request in receiver.arrived) == sorted(
        JsonFormat().encode(batch(ONE, ROWS), "src1")[1].to_pylist()
    )
    for request in receiver.arrived:
        assert request.headers["content-type"] == "application/json"
        assert request.headers["idempotency-key"] == request.changes[0]["event_id"]
        assert (request.headers["x-team"], request.headers["authorization"]) == ("shop", "Bearer t")
    assert len(set(receiver.keys)) == len(ROWS)
    assert receipt["rows"] == 7 and receipt["tables"] == {"public.orders": 7} and receipt["refused"] == []
    assert receipt["bytes"] == sum(len(request.body) for request in receiver.arrived)


@pytest.mark.parametrize("mode", ["array", "lines"])
def test_many_changes_of_a_request_are_in_log_order_and_within_its_limits(mode: str) -> None:
    with Receiver() as receiver:
        send(receiver, ROWS, batch_mode=mode, max_batch_changes=3, concurrency=1)
        whole = [[change["ordinal"] for change in request.changes] for request in receiver.arrived]
        assert whole == [[1, 2, 3], [4, 5, 6], [7]]
        size = len(receiver.arrived[0].body)
        assert len(set(receiver.keys)) == 3
        receiver.arrived.clear()
        send(receiver, ROWS, batch_mode=mode, max_batch_bytes=size, concurrency=1)
        assert max(len(request.body) for request in receiver.arrived) <= size and len(receiver.arrived) == 3
        receiver.arrived.clear()
        send(receiver, ROWS, batch_mode=mode, max_batch_bytes=10, concurrency=1)
        assert [len(request.changes) for request in receiver.arrived] == [1] * 7
    found = decode(pa.array([json.dumps(change) for change in receiver.changes]), ONE)
    assert found.column("big").to_pylist() == [change.row["big"] for change in ROWS]


@pytest.mark.parametrize("mode", ["none", "array"])
def test_a_repeated_epoch_repeats_its_requests_to_the_byte(mode: str) -> None:
    with Receiver() as receiver, writer(receiver.url, batch_mode=mode, max_batch_changes=2) as first:
        first.write(epoch(), 0, iter([batch(ONE, ROWS)]))
        once = sorted((request.headers["idempotency-key"], request.body) for request in receiver.arrived)
        receiver.arrived.clear()
        with writer(receiver.url, batch_mode=mode, max_batch_changes=2) as second:
            second.write(epoch(), 0, iter([batch(ONE, ROWS)]))
        assert sorted((request.headers["idempotency-key"], request.body) for request in receiver.arrived) == once


def test_an_epoch_that_broke_off_is_repeated_with_the_same_keys_and_goes_on() -> None:
    dead = False

    def answer(arrived: Arrived) -> Reply:
        return None if dead and arrived.changes[0]["ordinal"] > 4 else reply()

    with Receiver(answer) as receiver:
        dead = True
        with pytest.raises(DestinationUnreachable):
            send(receiver, ROWS, concurrency=1, max_retries=0)
        broken = list(dict.fromkeys(receiver.keys))
        assert len(broken) == 5
        dead = False
        receiver.arrived.clear()
        send(receiver, ROWS, concurrency=1)
        assert receiver.keys[:5] == broken and len(set(receiver.keys)) == len(ROWS)


def test_requests_that_begin_and_end_alike_have_keys_of_their_own() -> None:
    with Receiver() as receiver:
        send(receiver, [ROWS[0], ROWS[1], ROWS[3]], batch_mode="array")
        send(receiver, [ROWS[0], ROWS[2], ROWS[3]], batch_mode="array")
    assert len(set(receiver.keys)) == 2


def test_a_signature_can_be_verified_and_is_of_the_time_of_the_try() -> None:
    refused: list[str] = []

    def answer(arrived: Arrived) -> Reply:
        refused.append(arrived.headers["penstock-signature"])
        return reply(503 if len(refused) == 1 else 200)

    with Receiver(answer) as receiver:
        send(receiver, ROWS[:1], hmac_secret="s3cret")
    for request in receiver.arrived:
        at, made = (part.partition("=")[2] for part in request.headers["penstock-signature"].split(","))
        assert made == hmac.new(b"s3cret", at.encode() + b"." + request.body, hashlib.sha256).hexdigest()
    assert len(receiver.arrived) == 2


def test_user_and_password_of_the_address_become_basic_authentication() -> None:
    with Receiver() as receiver:
        send(receiver.url.replace("//", "//us%40er:p%3Aw@") + "?q=1", ROWS[:1])
    assert receiver.arrived[0].headers["authorization"] == "Basic dXNAZXI6cDp3"
    assert receiver.arrived[0].path == "/changes?q=1" and "@" not in receiver.arrived[0].headers["host"]


def test_connections_are_kept_between_epochs_and_replaced_when_the_server_closes_them() -> None:
    with Receiver() as receiver, writer(receiver.url, concurrency=2) as made:
        for number in (1, 2, 3):
            made.write(epoch(number), 0, iter([batch(ONE, ROWS)]))
        assert receiver.connections <= 2
        receiver.hang_up()
        receipt = made.write(epoch(4), 0, iter([batch(ONE, ROWS)]))
        assert receipt["rows"] == 7 and receiver.connections > 2


def test_methods_and_header_names_can_be_chosen() -> None:
    with Receiver() as receiver:
        send(receiver, ROWS[:1], method="PUT", idempotency_header="X-Id", hmac_secret="s", signature_header="X-Sig")
    (request,) = receiver.arrived
    assert request.method == "PUT" and request.headers["x-id"] == request.changes[0]["event_id"]
    assert request.headers["x-sig"].startswith("t=")


def test_large_bodies_and_key_less_tables_go_through() -> None:
    keyless = table({"v": pa.string()}, key=())
    rows = [insert({"v": "x" * 3_000_000}), update({"v": "y"}, ordinal=2)]
    with Receiver() as receiver:
        receipt = send(receiver, [batch(keyless, rows)])
    assert [len(change["after"]["v"]) for change in receiver.changes] == [3_000_000, 1]
    assert receipt["rows"] == 2
