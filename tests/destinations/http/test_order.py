"""Requests side by side: changes of one key are never in flight together and arrive in order; nothing passes a TRUNCATE."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches import batch, insert, move, table, truncate, update
from tests.destinations.http.receiver import Arrived, Receiver, reply
from tests.destinations.http.sending import send
from tests.table_model import ONE, TWO, logs

KEYLESS = table({"id": pa.int64(), "v": pa.string()}, key=(), name="notes")


class Watch:
    """Answers after random moments, and knows which keys are being worked on."""

    def __init__(self, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._working: Counter[Any] = Counter()
        self.together: list[Any] = []
        self.most = 0

    def __call__(self, arrived: Arrived) -> bytes:
        keys = {key for change in arrived.changes for key in _keys(change)}
        whole = {(change["table"], None) for change in arrived.changes if change["op"] == "truncate"}
        with self._lock:
            self.together += [key for key in keys if self._working[key]]
            self.together += [key for key in self._working if (key[0], None) in whole and self._working[key]]
            self._working.update(keys | whole)
            self.most = max(self.most, self._working.total())
            pause = self._chance.choice((0, 0.0005, 0.002))
        time.sleep(pause)
        with self._lock:
            self._working.subtract(keys | whole)
        return reply()


def _keys(change: dict[str, Any]) -> set[Any]:
    """The keys that a change concerns: its own, and the one that it left."""
    own = change["key"]
    if own is None:
        return {(change["table"], "")} if change["op"] != "truncate" else set()
    found = {(change["table"], tuple(own.values()))}
    if change["before"] is not None and change["op"] == "update":
        found.add((change["table"], tuple(change["before"][name] for name in own)))
    return found


def assert_in_order(receiver: Receiver) -> None:
    last: dict[Any, tuple[str, int]] = {}
    for change in receiver.changes:
        at = (change["event_id"], change["ordinal"])
        for key in _keys(change):
            assert last.get(key, ("", 0)) < at, f"{key} out of order"
            last[key] = at


@pytest.mark.parametrize("mode", ["none", "array"])
def test_changes_of_one_key_go_one_after_the_other_and_others_side_by_side(mode: str) -> None:
    rows = [update({"id": n % 20, "v": n}, ordinal=n) for n in range(1, 201)]
    watch = Watch()
    with Receiver(watch) as receiver:
        send(receiver, rows, concurrency=8, batch_mode=mode, max_batch_changes=5)
    assert watch.together == [] and watch.most > 1
    assert_in_order(receiver)
    assert len(receiver.changes) == 200


def test_changes_of_a_table_without_a_key_go_in_order() -> None:
    rows = [insert({"id": 1, "v": str(n)}, ordinal=n) for n in range(1, 50)]
    with Receiver(Watch()) as receiver:
        send(receiver, [batch(KEYLESS, rows)], concurrency=8)
    assert [change["ordinal"] for change in receiver.changes] == list(range(1, 50))


def test_nothing_passes_a_truncate() -> None:
    rows = [update({"id": n, "v": n}, ordinal=n) for n in range(1, 30)]
    after = [update({"id": n, "v": n}, ordinal=n) for n in range(31, 60)]
    watch = Watch()
    with Receiver(watch) as receiver:
        send(receiver, [batch(ONE, [*rows, truncate(ordinal=30), *after])], concurrency=8)
    at = [change["op"] for change in receiver.changes].index("truncate")
    assert at == 29 and watch.together == []


def test_a_key_change_stands_in_order_with_both_its_keys() -> None:
    chain = [update({"id": 1, "v": 0}, ordinal=1)]
    for n in range(1, 30):
        chain += move({"id": n}, {"id": n + 1, "v": n}, ordinal=2 * n)
        chain.append(insert({"id": n, "v": 0, "big": "", "large": ""}, ordinal=2 * n + 1))
    watch = Watch()
    with Receiver(watch) as receiver:
        send(receiver, chain, concurrency=8)
    assert watch.together == []
    assert [change["ordinal"] for change in receiver.changes] == list(range(1, 60))


def test_tables_of_one_epoch_go_side_by_side_in_log_order() -> None:
    ones = [insert({"id": n, "v": n, "big": "", "large": ""}, ordinal=2 * n) for n in range(1, 20)]
    twos = [insert({"a": n, "b": "x", "v": n, "big": "", "large": ""}, ordinal=2 * n + 1) for n in range(1, 20)]
    with Receiver() as receiver:
        send(receiver, [batch(ONE, ones), batch(TWO, twos)], concurrency=1)
    assert [change["ordinal"] for change in receiver.changes] == list(range(2, 40))


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_log_arrives_in_order_per_key(data: st.DataObject) -> None:
    schema = data.draw(st.sampled_from([ONE, TWO]))
    changes = data.draw(logs(schema))
    mode, size = data.draw(st.sampled_from(["none", "array", "lines"])), data.draw(st.integers(1, 5))
    cut = data.draw(st.integers(0, len(changes)))
    watch = Watch()
    with Receiver(watch) as receiver:
        parts = [batch(schema, part) for part in (changes[:cut], changes[cut:]) if part]
        send(receiver, parts, concurrency=4, batch_mode=mode, max_batch_changes=size)
    assert watch.together == []
    assert_in_order(receiver)
    arrived = {(change["position"], change["ordinal"]) for change in receiver.changes}
    assert len(receiver.changes) == len(arrived) == len({(c.position, c.ordinal) for c in changes})
