"""Changes that a server refuses for good: set aside with what follows on their keys, while everything else is delivered."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.errors import DestinationRefused
from tests.batches import batch, delete, insert, move, table, truncate, update
from tests.destinations.http.receiver import Arrived, Receiver, Reply, reply
from tests.destinations.http.sending import send
from tests.table_model import ONE, TWO

MODES: list[dict[str, Any]] = [{"batch_mode": "none"}, {"batch_mode": "array"}, {"batch_mode": "lines", "max_batch_changes": 3}]


class Picky:
    """Refuses a request with one of some changes in it, by ordinal."""

    def __init__(self, *ordinals: int, status: int = 422) -> None:
        self.ordinals, self.status = set(ordinals), status

    def __call__(self, arrived: Arrived) -> Reply:
        return reply(self.status if {change["ordinal"] for change in arrived.changes} & self.ordinals else 200)


def taken(receiver: Receiver, picky: Picky) -> list[int]:
    """The ordinals that the server took."""
    good = [r for r in receiver.arrived if not {change["ordinal"] for change in r.changes} & picky.ordinals]
    return [change["ordinal"] for request in good for change in request.changes]


def codes(receipt: Any) -> dict[int, str]:
    """What was set aside, by ordinal."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(receipt["refused"])) == receipt["refused"]
    return {entry["ordinal"]: entry["code"] for entry in receipt["refused"]}


@pytest.mark.parametrize("options", MODES)
def test_a_refused_change_and_what_follows_on_its_key_are_set_aside(options: dict[str, Any]) -> None:
    rows = [update({"id": n % 4, "v": n}, ordinal=n) for n in range(1, 17)]
    picky = Picky(6)
    with Receiver(picky) as receiver:
        receipt = send(receiver, rows, sets_aside=True, **options)
    assert codes(receipt) == {6: "change_refused", 10: "waiting", 14: "waiting"}
    assert sorted(taken(receiver, picky)) == [n for n in range(1, 17) if n not in (6, 10, 14)]
    assert receipt["rows"] == 13 and receipt["tables"] == {"public.orders": 13} and receipt["counts"] == {"refused": 3}
    first = next(entry for entry in receipt["refused"] if entry["ordinal"] == 6)
    assert {**first, "reason": ""} == {
        "schema": "public", "table": "orders", "position": 100, "ordinal": 6, "code": "change_refused", "reason": "",
    }  # fmt: skip
    assert "422" in first["reason"]


@pytest.mark.parametrize("options", MODES)
def test_a_key_stays_parked_over_the_parts_of_an_epoch_and_over_key_changes(options: dict[str, Any]) -> None:
    one = batch(ONE, [update({"id": 1, "v": 1}, ordinal=1), *move({"id": 1}, {"id": 2, "v": 1}, ordinal=2)])
    other = batch(TWO, [insert({"a": 2, "b": "x", "v": 1, "big": "", "large": ""}, ordinal=3)])
    later = batch(ONE, [update({"id": 3, "v": 1}, ordinal=4), *move({"id": 2}, {"id": 5, "v": 1}, ordinal=5)])
    last = batch(ONE, [delete({"id": 5}, ordinal=6), insert({"id": 7, "v": 1, "big": "", "large": ""}, ordinal=7)])
    picky = Picky(1)
    with Receiver(picky) as receiver:
        receipt = send(receiver, [one, other, later, last], sets_aside=True, **options)
    assert codes(receipt) == {1: "change_refused", 2: "waiting", 5: "waiting", 6: "waiting"}
    assert sorted(taken(receiver, picky)) == [3, 4, 7]


def test_after_a_refused_truncate_the_table_waits_and_no_other() -> None:
    one = batch(ONE, [update({"id": 1, "v": 1}, ordinal=1), truncate(ordinal=2), update({"id": 2, "v": 1}, ordinal=3)])
    other = batch(TWO, [insert({"a": 2, "b": "x", "v": 1, "big": "", "large": ""}, ordinal=4)])
    later = batch(ONE, [update({"id": 9, "v": 1}, ordinal=5)])
    picky = Picky(2)
    with Receiver(picky) as receiver:
        receipt = send(receiver, [one, other, later], sets_aside=True)
    assert codes(receipt) == {2: "change_refused", 3: "waiting", 5: "waiting"}
    assert sorted(taken(receiver, picky)) == [1, 4]


def test_rows_without_a_key_wait_for_nobody() -> None:
    keyless = table({"v": pa.string()}, key=())
    picky = Picky(2)
    with Receiver(picky) as receiver:
        receipt = send(receiver, [batch(keyless, [insert({"v": "a"}, ordinal=n) for n in range(1, 5)])], sets_aside=True)
    assert codes(receipt) == {2: "change_refused"} and taken(receiver, picky) == [1, 3, 4]


def test_a_request_that_is_too_large_is_sent_in_halves() -> None:
    def answer(arrived: Arrived) -> Reply:
        return reply(413 if len(arrived.body) > 1500 else 200)

    rows = [update({"id": n, "v": n}, ordinal=n) for n in range(1, 17)]
    with Receiver(answer) as receiver:
        receipt = send(receiver, rows, batch_mode="array", concurrency=1)
    small = [request for request in receiver.arrived if len(request.body) <= 1500]
    assert receipt["rows"] == 16 and len(small) < 16
    assert [change["ordinal"] for request in small for change in request.changes] == list(range(1, 17))


def test_an_answer_about_the_address_sets_nothing_aside() -> None:
    with Receiver(lambda _: reply(401)) as receiver, pytest.raises(DestinationRefused):
        send(receiver, [update({"id": 1, "v": 1})], sets_aside=True)
