"""A changed definition: what begins, ends or begins anew, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.flow import Flow
from penstock.engine.reloading import Changes, compare
from penstock.errors import FlowChanged

A: dict[str, Any] = {"name": "a", "type": "stdout"}
B: dict[str, Any] = {"name": "b", "type": "files", "options": {"path": "b"}}


def flow(*destinations: dict[str, Any], **more: Any) -> Flow:
    raw = {"name": "shop", "source": {"type": "postgres", "options": {"dsn": "x"}}, "destinations": destinations or (A, B)}
    return Flow.model_validate({**raw, **more})


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (flow(), Changes()),
        (flow(A), Changes(removed=("b",))),
        (flow(A, B, {"name": "c", "type": "stdout"}), Changes(added=("c",))),
        (flow(A, {**B, "options": {"path": "c"}}), Changes(restarted=("b",))),
        (flow(A, {**B, "retry": {"max": "1s"}}), Changes(restarted=("b",))),
        (flow(A, {**B, "required": False}), Changes(rules=True)),
        (flow(B, A), Changes()),
        (flow(parallelism=2), Changes(restarted=("a", "b"))),
        (flow(config={"batch": {"max_rows": 5}}), Changes(restarted=("a", "b"), rules=True)),
        (flow(config={"dead_letter": {"enabled": False}}), Changes(restarted=("a", "b"), rules=True)),
        (flow(config={"ack_policy": "primary", "primary_destination": "a"}), Changes(rules=True)),
    ],
)
def test_only_what_has_changed_is_touched(new: Flow, expected: Changes) -> None:
    assert compare(flow(), new) == expected


def test_changes_are_said_in_words() -> None:
    assert str(Changes(("c", "d"), (), ("a",), ("b",), True)) == "added c, d; restarted a; retried b; rules changed"
    assert str(Changes()) == "nothing has changed"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"source": {"type": "postgres", "options": {"dsn": "y"}}},
        {"config": {"journal": {"url": "/elsewhere"}}},
    ],
    ids=["name", "source", "journal"],
)
def test_what_the_flow_s_state_belongs_to_is_not_changed_under_it(change: dict[str, Any]) -> None:
    with pytest.raises(FlowChanged) as error:
        compare(flow(), flow(**change))
    assert error.value.remedy != FlowChanged.default_remedy
