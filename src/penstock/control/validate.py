"""Validation: every problem of a flow at once, before anything runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from penstock.control.sentences import problems_of, suggest
from penstock.core.card import Card, Kind
from penstock.core.connectors import cards, find
from penstock.core.flow import Flow, FlowRules
from penstock.core.secret import has_reference, resolve
from penstock.errors import ConnectorUnknown, Problem

WIRE_FORMAT, WIRE_ENFORCE = "PENSTOCK_WIRE_FORMAT", "PENSTOCK_WIRE_ENFORCE"
"""Settings of where flows are kept and run: the format of flows that name none, and whether a destination may have another."""


@dataclass(frozen=True)
class Note:
    """Something that is no problem here but may be one where the flow runs."""

    path: str
    message: str
    remedy: str

    def to_data(self) -> dict[str, str]:
        """Plain data for an answer."""
        return {"path": self.path, "message": self.message, "remedy": self.remedy}


@dataclass(frozen=True)
class _Use:
    """A connector as the flow uses it, with options that its card accepts."""

    path: str
    card: Card
    options: BaseModel


def validate(raw: Mapping[str, Any], *, strict: bool, resolving: bool = True) -> tuple[Flow | None, list[Problem], list[Note]]:
    """The flow, or every problem that keeps it from being one; neither where only what a reference stands for would tell.

    `strict` is for where the flow runs: references are resolved in the flow that is returned, and one that cannot be is a
    problem. Elsewhere it is a note, and the values that hold it are not judged. Without `resolving` no reference is followed:
    a sentence about a bad value would tell a stranger what is behind it.
    """
    problems: list[Problem] = []
    notes: list[Note] = []

    def missing(path: str, message: str, remedy: str) -> None:
        if strict:
            problems.append(Problem(path, message, remedy))
        else:
            notes.append(Note(path, message, remedy))

    # Judged with what can be resolved here, so that a default or a file with a bad value is found early.
    resolved = resolve(dict(raw), "", missing) if resolving else dict(raw)
    judged = _with_wire_format(resolved)
    problems += _shape(judged)
    used = list(_connectors(judged, problems))
    problems += _wire_format(judged)
    problems += _names(judged)
    problems += _rules(judged)
    problems += _same_place(used)
    notes += _without_effect(judged)
    if problems:
        return None, _ordered(problems), notes
    try:
        return Flow.model_validate(judged if strict else dict(raw)), [], notes
    except ValidationError:
        # References that stand for numbers or choices: what they will be is not known here.
        return None, [], notes


def _with_wire_format(raw: Any) -> dict[str, Any]:
    """The flow with `wire_format`, its own or that of the setting, on every destination that encodes and has no format."""
    flow = dict(raw)
    if flow.get("wire_format") is None and os.environ.get(WIRE_FORMAT):
        flow["wire_format"] = os.environ[WIRE_FORMAT]
    wire, destinations = flow.get("wire_format"), flow.get("destinations")
    if not isinstance(wire, str) or wire not in cards("format") or not isinstance(destinations, list):
        return flow
    known = cards("destination")
    filled: list[Any] = []
    for use in destinations:
        card = known.get(use["type"]) if isinstance(use, dict) and isinstance(use.get("type"), str) else None
        options = use.get("options", {}) if isinstance(use, dict) else None
        if card is not None and isinstance(options, dict) and "format" in card.options.model_fields and "format" not in options:
            use = {**use, "options": {**options, "format": wire}}
        filled.append(use)
    return {**flow, "destinations": filled}


def _shape(raw: dict[str, Any]) -> list[Problem]:
    try:
        Flow.model_validate(raw)
    except ValidationError as error:
        return problems_of(error, Flow)
    return []


def _connectors(raw: dict[str, Any], problems: list[Problem]) -> Iterator[_Use]:
    for path, kind, use in uses(raw):
        name = use.get("type")
        if not isinstance(name, str) or has_reference(name):
            continue
        try:
            card = find(kind, name)
        except ConnectorUnknown as error:
            problems.append(Problem(f"{path}.type", error.message, error.remedy))
            continue
        options = use.get("options", {})
        if not isinstance(options, dict):
            continue
        try:
            yield _Use(path, card, card.options.model_validate(options))
        except ValidationError as error:
            problems += problems_of(error, card.options, f"{path}.options", f"option of {name}")


def uses(raw: dict[str, Any]) -> Iterator[tuple[str, Kind, dict[str, Any]]]:
    """The connectors of a definition that may still have problems: path, kind, and what stands there."""
    if isinstance(raw.get("source"), dict):
        yield "source", "source", raw["source"]
    lists: tuple[tuple[str, Kind], ...] = (("transforms", "transform"), ("destinations", "destination"))
    for key, kind in lists:
        entries = raw.get(key)
        for index, use in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(use, dict):
                yield f"{key}[{index}]", kind, use


def _wire_format(raw: dict[str, Any]) -> Iterator[Problem]:
    wire = raw.get("wire_format")
    known = list(cards("format"))
    if isinstance(wire, str) and not has_reference(wire) and wire not in known:
        yield Problem("wire_format", f"there is no format named {wire!r}", suggest(wire, known, "formats"))
    if not isinstance(wire, str) or os.environ.get(WIRE_ENFORCE, "").lower() not in ("1", "true", "yes", "on"):
        return
    for index, use in _destinations(raw):
        options = use.get("options")
        own = options.get("format") if isinstance(options, dict) else None
        if isinstance(own, str) and not has_reference(own) and own != wire:
            yield Problem(
                f"destinations[{index}].options.format",
                f"is {own!r}, and the flow's wire_format is {wire!r}, which {WIRE_ENFORCE} has every destination use",
                "Leave it out, so that the destination inherits it, or change wire_format.",
            )


def _destinations(raw: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    entries = raw.get("destinations")
    return [(i, d) for i, d in enumerate(entries if isinstance(entries, list) else []) if isinstance(d, dict)]


def _names(raw: dict[str, Any]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, destination in _destinations(raw):
        name = destination.get("name")
        if not isinstance(name, str):
            continue
        if name in first:
            yield Problem(
                f"destinations[{index}].name",
                f"{name!r} is already the name of destinations[{first[name]}]",
                "Give each destination a name of its own: its checkpoint belongs to the name.",
            )
        first.setdefault(name, index)


def _rules(raw: dict[str, Any]) -> Iterator[Problem]:
    config = raw.get("config")
    if not isinstance(config, dict):
        return
    destinations = [d for _, d in _destinations(raw)]
    names = [d["name"] for d in destinations if isinstance(d.get("name"), str)]
    policy, quorum, primary = config.get("ack_policy"), config.get("quorum"), config.get("primary_destination")
    if policy == "quorum" and quorum is None:
        yield Problem(
            "config.quorum", "is missing, and ack_policy is quorum", f"Set it to a number from 1 to {len(destinations)}."
        )
    if isinstance(quorum, int) and not isinstance(quorum, bool) and quorum > len(destinations):
        message = f"asks for {quorum} destinations, and the flow has {len(destinations)}"
        yield Problem("config.quorum", message, f"Set it to a number from 1 to {len(destinations)}.")
    if policy == "primary" and primary is None:
        message = "is missing, and ack_policy is primary"
        yield Problem("config.primary_destination", message, f"Name one of the destinations: {', '.join(names)}.")
    if isinstance(primary, str) and not has_reference(primary) and primary not in names:
        message = f"{primary!r} is not a destination of this flow"
        yield Problem("config.primary_destination", message, suggest(primary, names, "destinations"))
    if policy == "required" and destinations and all(d.get("required") is False for d in destinations):
        message = "waits for required destinations, and none is: the source would never be told anything"
        yield Problem("config.ack_policy", message, "Mark a destination `required: true`, or choose `ack_policy: all`.")


def _without_effect(raw: dict[str, Any]) -> Iterator[Note]:
    config = raw.get("config")
    if not isinstance(config, dict):
        return
    policy = config.get("ack_policy", "all")
    if policy not in get_args(FlowRules.model_fields["ack_policy"].annotation):
        return
    for key, wanted in (("quorum", "quorum"), ("primary_destination", "primary")):
        if config.get(key) is not None and policy != wanted:
            yield Note(
                f"config.{key}", f"has no effect while ack_policy is {policy}", f"Set `ack_policy: {wanted}`, or remove it."
            )


def _same_place(uses: list[_Use]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for use in uses:
        path = getattr(use.options, "path", None)
        if use.card.kind != "destination" or path is None or has_reference(str(path)):
            continue
        place = str(path) if "://" in str(path) else str(Path(path).expanduser().resolve())
        if place in first:
            message = f"is the same place as that of {first[place]}"
            yield Problem(f"{use.path}.options.path", message, "Give each destination a path of its own.")
        first.setdefault(place, use.path)


def _ordered(problems: list[Problem]) -> list[Problem]:
    """Without what was said twice; the order in which a reader meets the keys is kept."""
    seen: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        seen.setdefault((problem.path, problem.message), problem)
    return list(seen.values())
