"""The acknowledgement policy: what the source may be told, given what has become durable where."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.flow import Flow


def allowed(flow: Flow, checkpoints: Mapping[str, int], journal: int) -> int:
    """The position that the source may be told; `checkpoints` are durable in the ledger, `journal` in the journal."""
    rules = flow.config
    reached = sorted(checkpoints.values(), reverse=True)
    if rules.ack_policy == "journal":
        return journal
    if rules.ack_policy == "primary" and rules.primary_destination is not None:
        return checkpoints[rules.primary_destination]
    if rules.ack_policy == "quorum" and rules.quorum is not None:
        return reached[rules.quorum - 1]
    if rules.ack_policy == "required":
        required = [checkpoints[d.name] for d in flow.destinations if d.required]
        return min(required) if required else min(reached)
    return min(reached)


def waits_for(flow: Flow, name: str, checkpoints: Mapping[str, int]) -> bool:
    """Whether the policy waits for this destination now: were it gone, the source might be told more."""
    rules = flow.config
    if rules.ack_policy == "journal":
        return False
    if rules.ack_policy == "primary":
        return name == rules.primary_destination
    if rules.ack_policy == "quorum" and rules.quorum is not None:
        return sum(p > checkpoints[name] for p in checkpoints.values()) < rules.quorum
    required = [d.name for d in flow.destinations if d.required]
    return rules.ack_policy == "all" or name in required or not required
