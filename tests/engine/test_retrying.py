"""Pauses between tries grow up to their limit, are jittered, and give way to a destination that knows better."""

from __future__ import annotations

from penstock.core.flow import RetryRules
from penstock.engine.retrying import pause_before
from penstock.errors import DestinationFailed

RULES = RetryRules.model_validate({"base": "200ms", "max": "30s", "factor": 2})


def test_pauses_grow_to_the_limit_and_are_jittered() -> None:
    error = DestinationFailed("x")
    for attempts, most in ((1, 0.2), (2, 0.4), (5, 3.2), (9, 30.0), (10**9, 30.0)):
        pauses = [pause_before(RULES, attempts, error) for _ in range(50)]
        assert all(most / 2 <= pause <= most for pause in pauses) and len(set(pauses)) > 1


def test_a_destination_that_says_when_to_come_is_heard() -> None:
    assert pause_before(RULES, 1, DestinationFailed("x", retry_after=120)) == 120.0
    assert pause_before(RULES, 9, DestinationFailed("x", retry_after=1)) >= 15.0
