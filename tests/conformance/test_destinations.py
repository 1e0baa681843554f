"""What every destination promises, held against each one that the scan finds."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.batch import Odd
from penstock.core.connectors import cards
from penstock.destinations.base import Held
from penstock.errors import LedgerFenced, TableWithoutKey, ValueUnrepresentable
from tests.batches import batch, delete, insert, move, table, truncate, update
from tests.conformance.deliver import FIRST, SECOND
from tests.conformance.harness import Harness, Work, work
from tests.table_model import ONE, TWO, logs, numbered, replay, shared_out, start

NAMES = list(cards("destination"))
CAPABILITIES: dict[str, type | tuple[type, ...]] = {
    "delivery": str,
    "shape": str,
    "needs_key": bool,
    "deletes": bool,
    "truncate": bool,
    "key_changes": bool,
    "holds_position": bool,
    "max_wait": float,
    "max_bytes": int,
}
ROW = {"id": 1, "v": 1, "big": "b", "large": "l"}


@pytest.fixture(params=NAMES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(request.param, tmp_path)
    yield made
    made.close()


def expected(*epochs: Work) -> dict[str, Any]:
    """The model's rows by table after the epochs."""
    states: dict[str, Any] = {}
    for epoch in epochs:
        for schema, shares in epoch:
            once = {(c.position, c.ordinal, c.op): c for share in shares for c in share}
            changes = [once[identity] for identity in sorted(once)]
            states[schema.name] = replay(schema, changes, states.get(schema.name, {}))
    return states


@pytest.mark.parametrize("name", NAMES)
def test_card_says_what_it_can_in_plain_values(name: str) -> None:
    card = cards("destination")[name]
    assert {key: type(card.capabilities[key]) for key in CAPABILITIES} == CAPABILITIES
    assert card.capabilities["shape"] in ("table", "log")
    assert all(field.description for field in card.options.model_fields.values())


def test_cards_are_read_without_their_libraries() -> None:
    heavy = "{'duckdb', 'numba', 'pycurl', 'pyspark', 'pyarrow.parquet'}"
    scan = "from penstock.core.connectors import cards; cards('destination'); cards('format')"
    code = f"import sys; {scan}; sys.exit(str({heavy} & set(sys.modules) or ''))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_fresh_place_passes_its_check_and_holds_nothing(harness: Harness) -> None:
    before = harness.files()
    assert all(finding.ok for finding in harness.destination.check())
    harness.close()
    assert harness.files() == before
    assert harness.destination.committed() is None


CASES: dict[str, Any] = {
    "insert": [insert({**ROW, "id": 9})],
    "update": [update({**ROW, "v": 2})],
    "update with its old row": [update({**ROW, "v": 2}, ROW)],
    "unchanged columns": [update({"id": 1, "v": 2})],
    "NULL is not unchanged": [update({"id": 1, "v": None, "big": None})],
    "delete by key": [delete({"id": 1})],
    "delete by whole row": [delete(ROW)],
    "delete of nothing": [delete({"id": 77})],
    "truncate": [truncate(), insert({**ROW, "id": 9})],
    "key change": [move({"id": 1}, {"id": 5, "v": 3})],
    "key change with its old row": [move({**ROW}, {"id": 5, "v": 3, "big": "b", "large": "l"})],
    "several changes of one key": [update({"id": 1, "v": 2}), update({"id": 1, "v": 3, "big": "n"}), delete({"id": 1})],
    "nothing": [],
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_changes_give_the_model_s_rows(harness: Harness, changes: list[Any]) -> None:
    first, second = work(ONE, [insert(ROW, position=10)]), work(ONE, numbered(changes))
    harness.deliver(1, first)
    harness.deliver(2, second)
    assert harness.state(ONE) == expected(first, second)["orders"]


def test_composite_keys_and_several_tables_in_one_epoch(harness: Harness) -> None:
    harness.deliver(1, FIRST)
    harness.deliver(2, SECOND)
    for schema in (ONE, TWO):
        assert harness.state(schema) == expected(FIRST, SECOND)[schema.name]


@pytest.mark.parametrize(
    ("schema", "name", "column"),
    [
        ('We"ird; sch', 'DROP TABLE "x"; --', 'co"l'),
        ("public", "Mixed Case", "Mixed Case"),
        (".hidden", "../up/and/away", "$1"),
        ("_under", "__op", "__op"),
        ("temp", "select", "order"),
        ("schéma", "таблица", "列"),
        ("main", "100%=*?[x]", "a.b"),
        ("long" * 15, "n" * 63, "c" * 63),
    ],
)
def test_names_may_be_anything(harness: Harness, schema: str, name: str, column: str) -> None:
    odd = table({"id": pa.int64(), column: pa.string()}, schema=schema, name=name)
    harness.deliver(1, work(odd, [insert({"id": 1, column: "x'\"\\\n"}), insert({"id": 2, column: None}, ordinal=2)]))
    harness.deliver(2, work(odd, [update({"id": 1, column: "y"}, position=1001), delete({"id": 2}, position=1001, ordinal=2)]))
    assert harness.state(odd) == {(1,): {"id": 1, column: "y"}}


def test_replayed_epoch_writes_nothing_twice(harness: Harness) -> None:
    harness.deliver(1, FIRST)
    harness.deliver(1, FIRST)
    assert harness.state(ONE) == expected(FIRST)["orders"]
    if harness.card.capabilities["holds_position"]:
        harness.deliver(1, FIRST)
        assert harness.state(ONE) == expected(FIRST)["orders"]


def test_second_commit_changes_nothing(harness: Harness) -> None:
    receipts = harness.deliver(1, FIRST)
    with harness.around():
        harness.destination.commit(harness.epoch(1), receipts)
    assert harness.state(ONE) == expected(FIRST)["orders"]
    if harness.card.capabilities["shape"] == "log":
        assert len(harness.changes(ONE)) == len(FIRST[0][1][0])


def test_an_old_epoch_that_comes_again_changes_nothing(harness: Harness) -> None:
    harness.deliver(1, FIRST)
    harness.deliver(2, SECOND)
    harness.deliver(1, FIRST)
    for schema in (ONE, TWO):
        assert harness.state(schema) == expected(FIRST, SECOND)[schema.name]


def test_epochs_that_end_at_one_position_take_effect_each_once_also_when_replayed(harness: Harness) -> None:
    third = work(ONE, [update({"id": 4, "v": 44, "big": "third", "large": ""}, position=1003, ordinal=5)])
    epochs: list[tuple[Work, int | None]] = [(FIRST, None), (SECOND, 1000), (third, 1000), ([], 1000)]
    for number, (changes, at) in enumerate(epochs, 1):
        harness.deliver(number, changes, at=at)
        if harness.card.capabilities["holds_position"]:
            assert harness.destination.committed() == Held(1000, number)
    for number, (changes, at) in enumerate(epochs[:3], 1):
        harness.deliver(number, changes, at=at)
    for schema in (ONE, TWO):
        assert harness.state(schema) == expected(FIRST, SECOND, third)[schema.name]
    if harness.card.capabilities["shape"] == "log":
        identities = {(change["__position"], change["__ordinal"]) for change in harness.changes(ONE)}
        assert len(identities) == 5 + 4 + 1


def test_an_epoch_that_is_run_again_removes_nothing_of_one_that_ended_at_its_position(harness: Harness) -> None:
    third = work(ONE, [update({"id": 4, "v": 44, "big": "third", "large": ""}, position=1003, ordinal=5)])
    harness.deliver(1, FIRST)
    harness.deliver(2, SECOND, at=1000)
    harness.close()
    with harness.around():
        harness.destination.abort(harness.epoch(3, at=1000))
    harness.deliver(3, third, at=1000)
    for schema in (ONE, TWO):
        assert harness.state(schema) == expected(FIRST, SECOND, third)[schema.name]


def test_receipts_are_plain_data(harness: Harness) -> None:
    harness.destination.prepare([schema for schema, _ in FIRST])
    with harness.around():
        receipts = harness.write(harness.epoch(1), FIRST)
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(receipts))
    assert travelled[0]["tables"] == {"public.orders": 5, "public.lines": 2}
    assert travelled[0]["rows"] == 7
    with harness.around():
        harness.destination.commit(harness.epoch(1), travelled)
    assert harness.state(ONE) == expected(FIRST)["orders"]


@pytest.fixture
def staging(harness: Harness) -> Harness:
    """A destination that stages; what another one sends is seen at once."""
    if harness.card.capabilities.get("sends"):
        pytest.skip("the destination sends, as its card says")
    return harness


@pytest.mark.parametrize("rows", [5, 2000])
def test_only_listed_attempts_become_visible(staging: Harness, rows: int) -> None:
    harness = staging
    mine = work(ONE, [insert({"id": n, "v": n, "big": "x" * 500, "large": ""}, ordinal=n) for n in range(rows)])
    other = work(ONE, [insert({"id": -n, "v": n, "big": "x" * 500, "large": ""}, ordinal=n) for n in range(rows)])
    epoch = harness.epoch(1)
    harness.destination.prepare([ONE])
    with harness.around():
        harness.write(epoch, other)
        receipts = harness.write(epoch, mine)
        harness.write(epoch, other)
        harness.destination.commit(epoch, receipts)
    assert harness.state(ONE) == expected(mine)["orders"]


def test_nothing_is_visible_before_the_commit(staging: Harness) -> None:
    harness = staging
    harness.deliver(1, FIRST)
    epoch = harness.epoch(2, buckets=2)
    harness.destination.prepare([ONE, TWO])
    with harness.around():
        harness.write(epoch, SECOND)
    assert harness.state(ONE) == expected(FIRST)["orders"]


def test_abort_leaves_nothing_behind(harness: Harness) -> None:
    big = work(ONE, [insert({"id": n, "v": n, "big": "x" * 1000, "large": str(n)}, ordinal=n) for n in range(1, 2000)])
    harness.deliver(1, FIRST)
    harness.destination.prepare([ONE])
    harness.close()
    before = harness.files()
    epoch = harness.epoch(2)
    with harness.around():
        harness.write(epoch, big)
        harness.write(epoch, big)
        harness.destination.abort(epoch)
        harness.destination.abort(epoch)
    harness.close()
    assert harness.files() == before
    if not harness.card.capabilities.get("sends"):
        harness.deliver(2, SECOND)
        assert harness.state(ONE) == expected(FIRST, SECOND)["orders"]


def test_position_is_held_where_the_card_says_so(harness: Harness) -> None:
    holds = harness.card.capabilities["holds_position"]
    harness.deliver(1, FIRST)
    assert harness.destination.committed() == (Held(1000, 1) if holds else None)
    harness.deliver(2, [])
    assert harness.destination.committed() == (Held(2000, 2) if holds else None)
    harness.close()
    assert harness.destination.committed() == (Held(2000, 2) if holds else None)


def test_a_position_inside_of_a_transaction_is_held_where_the_card_says_so(harness: Harness) -> None:
    holds = harness.card.capabilities["holds_position"]
    harness.deliver(1, FIRST)
    with harness.around():
        harness.destination.commit(dataclasses.replace(harness.epoch(2, at=1000), upto_part=7), [])
    assert harness.destination.committed() == (Held(1000, 2, 7) if holds else None)
    harness.close()
    assert harness.destination.committed() == (Held(1000, 2, 7) if holds else None)
    harness.deliver(3, [])
    assert harness.destination.committed() == (Held(3000, 3) if holds else None)


def test_lower_generation_is_refused(harness: Harness) -> None:
    if not harness.card.capabilities["holds_position"]:
        pytest.skip("the destination holds nothing that could fence")
    harness.deliver(1, FIRST, generation=5)
    harness.close()
    with pytest.raises(LedgerFenced):
        harness.deliver(2, SECOND, generation=4)
    assert harness.state(ONE) == expected(FIRST)["orders"]
    harness.deliver(2, SECOND, generation=6)
    assert harness.state(ONE) == expected(FIRST, SECOND)["orders"]


def test_a_successor_that_has_only_begun_is_a_fence_and_commits_what_was_planned_before(harness: Harness) -> None:
    if not harness.card.capabilities["holds_position"]:
        pytest.skip("the destination holds nothing that could fence")
    with harness.around():
        harness.destination.fence(4)
        harness.destination.prepare([schema for schema, _ in FIRST])
        receipts = harness.write(harness.epoch(1, generation=4), FIRST)
    harness.close()
    with harness.around():
        harness.destination.fence(5)
    harness.close()
    former = harness.destination
    with harness.around():
        with pytest.raises(LedgerFenced):
            former.fence(4)
        with pytest.raises(LedgerFenced):
            former.commit(harness.epoch(1, generation=4), receipts)
    harness.close()
    with harness.around():
        harness.destination.fence(5)
        assert harness.destination.committed() is None
    harness.deliver(1, FIRST, generation=4)
    for schema in (ONE, TWO):
        assert harness.state(schema) == expected(FIRST)[schema.name]


def test_table_without_key_is_refused_or_logged(harness: Harness) -> None:
    keyless = table({"id": pa.int64(), "v": pa.string()}, key=())
    if harness.card.capabilities["needs_key"]:
        with pytest.raises(TableWithoutKey) as refused:
            harness.destination.prepare([keyless])
        assert "ADD PRIMARY KEY" in refused.value.remedy
    else:
        harness.deliver(1, work(keyless, [insert({"id": 1, "v": "a"}), insert({"id": 1, "v": "a"}, ordinal=2)]))
        assert [(c["__op"], c["id"], c["v"]) for c in harness.changes(keyless)] == [("insert", 1, "a"), ("insert", 1, "a")]


def test_a_new_column_is_taken_in(harness: Harness) -> None:
    wider = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string(), "large": pa.string(), "more": pa.int64()}, version=2)
    harness.deliver(1, FIRST)
    harness.deliver(2, work(wider, [insert({"id": 9, "v": 1, "big": "", "large": "", "more": 5}, position=1001)]))
    assert harness.state(wider)[(9,)]["more"] == 5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", ["fail", "null"])
def test_values_that_do_not_fit_follow_the_policy(tmp_path: Path, name: str, policy: str) -> None:
    harness = Harness(name, tmp_path, on_unrepresentable=policy)
    odd = {"v": Odd(pa.array([0], pa.int32()), pa.array(["NaN"]))}
    made = batch(ONE, [insert({**ROW, "v": None})], odd)
    with harness.around():
        harness.destination.prepare([ONE])
        if policy == "fail":
            with pytest.raises(ValueUnrepresentable):
                harness.writer().write(harness.epoch(1), 0, iter([made]))
        else:
            receipt = harness.writer().write(harness.epoch(1), 0, iter([made]))
            assert receipt["counts"] == {"unrepresentable": 1} and receipt["nulled"] == {"public.orders": 1}
            harness.destination.commit(harness.epoch(1), [receipt])
            assert harness.state(ONE) == {(1,): {**ROW, "v": None}}
        in_key = dataclasses.replace(made, odd={"id": odd["v"]})
        with pytest.raises(ValueUnrepresentable):
            harness.writer().write(harness.epoch(2), 0, iter([in_key]))
    harness.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_log_gives_the_model_s_rows(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    schema = data.draw(st.sampled_from([ONE, TWO]))
    changes = data.draw(logs(schema))
    buckets, cuts = data.draw(st.integers(1, 3)), data.draw(st.lists(st.integers(1, 40), max_size=4))
    first = work(schema, [insert(row, position=10, ordinal=n) for n, row in enumerate(start(schema).values(), 1)])
    second: Work = [(schema, shared_out(schema, changes, buckets))]
    # Nothing is drawn from here on: a draw may end the example, and would leave the destination open.
    with closing(Harness(name, tmp_path_factory.mktemp(name))) as harness:
        harness.deliver(1, first)
        harness.deliver(2, second, cuts=cuts)
        assert harness.state(schema) == replay(schema, changes, start(schema))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_killed_at_a_failpoint_and_recovered(harness: Harness, when: str) -> None:
    harness.deliver(1, FIRST)
    harness.close()
    # One that sends is seen to act in the lane, the others in their commit.
    point = f"lane.{when}_send" if harness.card.capabilities.get("sends") else f"destination.{when}_publish"
    environment = {**os.environ, "PENSTOCK_FAILPOINT": point, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.conformance.deliver", harness.card.name, str(harness.home)]
    killed = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], timeout=120, check=False)
    assert killed.returncode == -9
    harness.recover(2, SECOND)
    for schema in (ONE, TWO):
        assert harness.state(schema) == expected(FIRST, SECOND)[schema.name]
    harness.close()
    # The next epoch goes on as if nothing had happened.
    third = work(ONE, [update({"id": 1, "v": 5, "big": "after", "large": "crash"}, position=2001)])
    harness.deliver(3, third)
    assert harness.state(ONE) == expected(FIRST, SECOND, third)["orders"]
