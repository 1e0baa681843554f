"""The acknowledgement policy: what the source may be told, given what has become durable where, and why not more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.flow import Flow
from penstock.core.options import format_size
from penstock.core.position import format_lsn


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


@dataclass(frozen=True)
class Verdict:
    """What the source may be told now, and what keeps it from being told more."""

    allowed: int
    held_by: tuple[str, ...]
    """Destinations that keep the source from being told all that the journal has; for a quorum, any of them would do."""
    sentences: tuple[str, ...]
    """The same for people: the rule, who holds the source back, and what it has not been told yet."""

    @property
    def reason(self) -> str:
        """The sentences one after the other."""
        return " ".join(self.sentences)


def explain(flow: Flow, checkpoints: Mapping[str, int], journal: int, told: int | None = None) -> Verdict:
    """Why the source may be told this much and no more; `told` is what it has been told, None when that is not known."""
    may = allowed(flow, checkpoints, journal)
    holding = _holding(flow, checkpoints, may) if may < journal else ()
    words = [f"{_rule(flow)}."]
    if holding:
        words.append(_held(flow, holding, may, journal))
    else:
        words.append("Nothing holds it back: everything in the journal may be told.")
    if told is not None and told < may:
        words.append(f"The source was told {format_lsn(told)} so far, and hears of the rest with the next status message.")
    return Verdict(may, holding, tuple(words))


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


def _holding(flow: Flow, checkpoints: Mapping[str, int], may: int) -> tuple[str, ...]:
    behind = [name for name, position in checkpoints.items() if position <= may]
    if flow.config.ack_policy == "quorum":
        return tuple(sorted(behind, key=lambda name: -checkpoints[name]))
    return tuple(name for name in behind if waits_for(flow, name, checkpoints))


def _rule(flow: Flow) -> str:
    rules = flow.config
    if rules.ack_policy == "journal":
        return "ack_policy journal: the source is told what the journal holds, whatever destinations have"
    if rules.ack_policy == "primary":
        return f"ack_policy primary: the source waits for {rules.primary_destination} alone"
    if rules.ack_policy == "quorum":
        return (
            f"ack_policy quorum: the source waits until {rules.quorum} of {len(flow.destinations)} destinations have a position"
        )
    if rules.ack_policy == "required":
        return "ack_policy required: the source waits for every destination that is marked required"
    return "ack_policy all: the source waits for every destination"


def _held(flow: Flow, holding: tuple[str, ...], may: int, journal: int) -> str:
    behind = f"at {format_lsn(may)}, {format_size(journal - may)} behind the journal"
    if flow.config.ack_policy == "quorum":
        return f"One more of {_listed(holding, 'or')} has to move on; the position that enough have is {behind}."
    verb = "hold" if len(holding) > 1 else "holds"
    return f"{_listed(holding, 'and')} {verb} it back, {behind}."


def _listed(names: tuple[str, ...], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
