"""A full journal: who is waited for, who is given up, and when reading goes on."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.flow import Flow
from penstock.engine.pressure import Standing, relief

MIB = 1 << 20


def flow(when_full: str, **config: Any) -> Flow:
    return Flow.model_validate(
        {
            "name": "shop",
            "source": {"type": "postgres"},
            "destinations": [{"name": "a", "type": "stdout"}, {"name": "b", "type": "stdout", "required": False}],
            "config": {**config, "journal": {"max_bytes": 100 * MIB, "when_full": when_full}},
        }
    )


AHEAD, BEHIND = Standing("a", 900, True), Standing("b", 10, False)


@pytest.mark.parametrize(
    ("when_full", "config", "given_up"),
    [
        ("auto", {}, False),
        ("auto", {"ack_policy": "required"}, True),
        ("auto", {"ack_policy": "journal"}, True),
        ("auto", {"ack_policy": "primary", "primary_destination": "a"}, True),
        ("auto", {"ack_policy": "primary", "primary_destination": "b"}, False),
        ("auto", {"ack_policy": "quorum", "quorum": 1}, True),
        ("auto", {"ack_policy": "quorum", "quorum": 2}, False),
        ("pause", {"ack_policy": "journal"}, False),
        ("fail", {}, True),
    ],
)
def test_the_rule_decides_between_waiting_and_giving_up(when_full: str, config: dict[str, Any], given_up: bool) -> None:
    act = relief(flow(when_full, **config), 101 * MIB, [AHEAD, BEHIND], holding=False)
    assert act.hold is not given_up
    assert (act.give_up is not None) is given_up
    if act.give_up is not None:
        assert act.give_up.facts["destination"] == "b" and "101.0 MiB" in act.give_up.message


def test_a_journal_with_room_is_left_alone() -> None:
    act = relief(flow("fail"), 100 * MIB, [AHEAD, BEHIND], holding=False)
    assert not act.hold and act.give_up is None


def test_reading_goes_on_some_way_below_the_limit() -> None:
    assert relief(flow("pause"), 95 * MIB, [AHEAD, BEHIND], holding=True).hold
    assert not relief(flow("pause"), 89 * MIB, [AHEAD, BEHIND], holding=True).hold


def test_an_open_transaction_larger_than_the_limit_is_read_to_its_end() -> None:
    assert not relief(flow("pause"), 500 * MIB, [AHEAD, Standing("b", 900, True)], holding=True).hold


def test_one_that_was_given_up_is_not_given_up_again() -> None:
    act = relief(flow("fail"), 101 * MIB, [AHEAD, Standing("b", 10, False, released=True)], holding=False)
    assert not act.hold and act.give_up is None
