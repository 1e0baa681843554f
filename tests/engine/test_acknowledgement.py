"""The acknowledgement policy: the source is told what the policy allows and nothing more."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.flow import Flow
from penstock.engine.acknowledgement import allowed, waits_for

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
