"""Changes on standard output: JSON lines in the order of the log, whatever the buckets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.batches import insert, truncate, update
from tests.conformance.harness import Harness, Work
from tests.table_model import ONE, TWO, shared_out


def test_buckets_and_tables_are_merged_in_log_order(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    ones = [insert({"id": n, "v": n, "big": "é", "large": None}, position=10 + n, ordinal=1) for n in range(20)]
    twos = [insert({"a": n, "b": "x", "v": n, "big": "", "large": ""}, position=10 + n, ordinal=2) for n in range(20)]
    work: Work = [
        (ONE, shared_out(ONE, [*ones, truncate(position=100)], 3)),
        (TWO, shared_out(TWO, [*twos, update({"a": 1, "b": "x", "v": 5}, position=99)], 3)),
    ]
    harness = Harness("stdout", tmp_path)
    epoch = harness.epoch(1, buckets=3)
    harness.destination.commit(epoch, harness.write(epoch, work))
    printed = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    places = [(line["position"], line["ordinal"]) for line in printed]
    assert places == sorted(places, key=lambda place: (int(place[0].partition("/")[2], 16), place[1]))
    assert len(printed) == 42
    assert [line["op"] for line in printed[-2:]] == ["update", "truncate"]
