"""The acknowledgement policy: the source is told what the policy allows and nothing more."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.flow import Flow
from penstock.engine.acknowledgement import allowed, explain, waits_for

REACHED = {"a": 10, "b": 20, "c": 30}


def flow(config: dict[str, Any], optional: tuple[str, ...] = ()) -> Flow:
    return Flow.model_validate(
        {
            "name": "shop",
            "source": {"type": "postgres"},
            "destinations": [{"name": n, "type": "stdout", "required": n not in optional} for n in REACHED],
            "config": config,
        }
    )


@pytest.mark.parametrize(
    ("config", "optional", "expected"),
    [
        ({}, (), 10),
        ({"ack_policy": "primary", "primary_destination": "b"}, (), 20),
        ({"ack_policy": "required"}, ("a",), 20),
        ({"ack_policy": "required"}, ("a", "b", "c"), 10),
        ({"ack_policy": "quorum", "quorum": 1}, (), 30),
        ({"ack_policy": "quorum", "quorum": 2}, (), 20),
        ({"ack_policy": "quorum", "quorum": 3}, (), 10),
        ({"ack_policy": "journal"}, (), 99),
    ],
)
def test_the_policy_decides(config: dict[str, Any], optional: tuple[str, ...], expected: int) -> None:
    assert allowed(flow(config, optional), REACHED, journal=99) == expected


@pytest.mark.parametrize(
    ("config", "optional", "expected"),
    [
        ({}, (), "abc"),
        ({"ack_policy": "primary", "primary_destination": "b"}, (), "b"),
        ({"ack_policy": "required"}, ("a",), "bc"),
        ({"ack_policy": "required"}, ("a", "b", "c"), "abc"),
        ({"ack_policy": "quorum", "quorum": 1}, (), "c"),
        ({"ack_policy": "quorum", "quorum": 2}, (), "bc"),
        ({"ack_policy": "quorum", "quorum": 3}, (), "abc"),
        ({"ack_policy": "journal"}, (), ""),
    ],
)
def test_whom_the_policy_waits_for(config: dict[str, Any], optional: tuple[str, ...], expected: str) -> None:
    made = flow(config, optional)
    assert "".join(name for name in REACHED if waits_for(made, name, REACHED)) == expected


@pytest.mark.parametrize(
    ("config", "optional", "held_by", "words"),
    [
        ({}, (), ("a",), "a holds it back, at 0/A"),
        ({"ack_policy": "primary", "primary_destination": "b"}, (), ("b",), "waits for b alone"),
        ({"ack_policy": "required"}, ("a",), ("b",), "marked required"),
        ({"ack_policy": "quorum", "quorum": 2}, (), ("b", "a"), "One more of b or a has to move on"),
        ({"ack_policy": "journal"}, (), (), "Nothing holds it back"),
    ],
)
def test_who_holds_the_source_back_is_said_by_policy(
    config: dict[str, Any], optional: tuple[str, ...], held_by: tuple[str, ...], words: str
) -> None:
    verdict = explain(flow(config, optional), REACHED, journal=99)
    assert verdict.held_by == held_by and words in verdict.reason


def test_nobody_is_blamed_when_all_is_delivered_and_what_is_not_told_yet_is_said() -> None:
    level = {"a": 99, "b": 99, "c": 99}
    verdict = explain(flow({}), level, journal=99, told=50)
    assert verdict.held_by == () and "was told 0/32" in verdict.reason
    assert "was told" not in explain(flow({}), level, journal=99, told=99).reason


def test_moving_on_whoever_is_blamed_lets_the_source_be_told_more() -> None:
    for config in ({}, {"ack_policy": "primary", "primary_destination": "b"}, {"ack_policy": "quorum", "quorum": 2}):
        verdict = explain(flow(config), REACHED, journal=99)
        moved = {name: 99 if name in verdict.held_by else position for name, position in REACHED.items()}
        assert allowed(flow(config), moved, journal=99) > verdict.allowed
