"""Destinations that hold their position, sent again what they have had: the same in the end, and nothing for who was replaced."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.core.batch import Op
from penstock.core.connectors import cards
from penstock.core.epoch import Epoch
from penstock.destinations.base import Held
from penstock.errors import LedgerFenced
from tests.batches import Change, insert
from tests.conformance.harness import SOURCE, Harness, work
from tests.table_model import ONE, logs, replay, start

TABLES = [c.name for c in cards("destination").values() if c.capabilities["shape"] == "table"]
ROW = {"id": 1, "v": 1, "big": "b", "large": "l"}


@pytest.fixture(params=TABLES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(request.param, tmp_path)
    yield made
    made.close()


def test_a_destination_goes_back_and_counts_on(harness: Harness) -> None:
    for number in (1, 2, 3):
        harness.deliver(number, work(ONE, [insert({**ROW, "id": number}, position=number)]))
    for _ in range(2):
        harness.destination.rewind(1000, 4)
        assert harness.destination.committed() == Held(1000, 4)
    # What it had already had, under the next number: not passed over.
    again = Epoch("flow", harness.card.name, SOURCE, 5, 1000, 2000, 1, 1)
    harness.destination.commit(again, harness.write(again, work(ONE, [insert({**ROW, "id": 2, "v": 9}, position=2)])))
    assert harness.destination.committed() == Held(2000, 5)
    assert {key[0]: row["v"] for key, row in harness.state(ONE).items()} == {1: 1, 2: 9, 3: 1}
    # A rewinding that comes late does not take back what came after it.
    harness.destination.rewind(1000, 4)
    assert harness.destination.committed() == Held(2000, 5)


def test_a_worker_that_was_taken_over_moves_nobody_back(harness: Harness) -> None:
    harness.deliver(1, work(ONE, [insert(ROW, position=1)]), generation=3)
    harness.destination.fence(5)
    harness.close()
    late = harness.destination
    late._generation = 3  # type: ignore[attr-defined]
    with pytest.raises(LedgerFenced):
        late.rewind(0, 2)
    harness.close()
    assert harness.destination.committed() == Held(1000, 1)


@pytest.mark.slow
def test_any_history_without_key_changes_sent_again_from_anywhere_ends_the_same(harness: Harness) -> None:
    number, names = itertools.count(1), itertools.count(1)

    @settings(max_examples=10, deadline=None, phases=[Phase.reuse, Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def ends_the_same(data: st.DataObject) -> None:
        schema = dataclasses.replace(ONE, name=f"orders{next(names)}")
        log = data.draw(logs(schema).map(lambda log: [c for c in log if c.op not in (Op.LEAVE, Op.ENTER)]))
        before = [Change(Op.INSERT, row, position=1, ordinal=n) for n, row in enumerate(start(schema).values(), 1)]
        epochs = [before, *([c] for c in log)]
        for changes in epochs:
            harness.deliver(next(number), work(schema, changes))
        for begin in (0, data.draw(st.integers(0, len(epochs)))):
            harness.destination.rewind(0, next(number))
            # In other pieces than before.
            for changes in (list(itertools.chain(*part)) for part in (epochs[begin : begin + 3], epochs[begin + 3 :])):
                if changes:
                    harness.deliver(next(number), work(schema, changes))
            assert harness.state(schema) == replay(schema, log, start(schema))

    ends_the_same()
