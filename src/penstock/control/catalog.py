"""The service of what there is: connectors with their options as JSON Schema, definitions judged, flows examined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from penstock.control.answers import (
    ConnectorAnswer,
    ConnectorList,
    ConnectorSummary,
    ExaminationAnswer,
    FindingAnswer,
    FindingGroup,
    ProblemAnswer,
    ValidationAnswer,
)
from penstock.control.caller import Caller
from penstock.control.checks import Group, examine
from penstock.control.drafts import examine_definition
from penstock.control.premises import Premises
from penstock.control.stored import placed, stored_flow
from penstock.core.card import Card, Kind
from penstock.core.connectors import ROOMS, cards, find


class Catalog:
    """Looks, and changes nothing."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def connectors(self, caller: Caller) -> ConnectorList:
        """Every installed connector."""
        caller.require("viewer")
        found = [card for kind in ROOMS for card in cards(kind).values()]
        return ConnectorList(connectors=[ConnectorSummary.model_validate(_summary(card)) for card in found])

    def connector(self, caller: Caller, kind: str, name: str) -> ConnectorAnswer:
        """One connector with its options. ConnectorUnknown."""
        caller.require("viewer")
        card = find(cast("Kind", kind), name)
        return ConnectorAnswer.model_validate({**_summary(card), "options": schema_of(card)})

    def validate(self, caller: Caller, definition: Mapping[str, Any]) -> ValidationAnswer:
        """Every problem of a definition at once; no reference in it is followed."""
        caller.require("viewer")
        problems, notes = examine_definition(definition, self._premises.secret_files)
        return ValidationAnswer(
            valid=not problems,
            problems=[ProblemAnswer(**p.to_data()) for p in problems],
            notes=[ProblemAnswer(**n.to_data()) for n in notes],
        )

    def doctor(self, caller: Caller, flow: str) -> ExaminationAnswer:
        """What stands in the way of a flow that was created here. FlowUnknown, FlowInvalid."""
        with self._premises.door(caller, "flow.doctor", flow, "operator"):
            ledger = self._premises.ledger
            groups = list(examine(placed(ledger, stored_flow(ledger, flow)), self._premises.state))
        return ExaminationAnswer(flow=flow, ok=all(g.ok for g in groups), groups=[finding_group(g) for g in groups])


def finding_group(group: Group) -> FindingGroup:
    """The findings about one part of a flow as an answer."""
    found = [FindingAnswer.model_validate(vars(finding)) for finding in group.findings]
    return FindingGroup(title=group.title, ok=group.ok, findings=found)


def schema_of(card: Card) -> dict[str, Any]:
    """The options as JSON Schema, with the docstrings as descriptions and secrets marked."""
    schema = card.options.model_json_schema()
    for properties in (schema.get("properties", {}), *(d.get("properties", {}) for d in schema.get("$defs", {}).values())):
        for option in properties.values():
            if option.pop("secret", False):
                option["writeOnly"] = True
            option.pop("connection", None)
    return schema


def _summary(card: Card) -> dict[str, Any]:
    about = {"kind": card.kind, "name": card.name, "summary": card.summary, "extra": card.extra}
    return {**about, "capabilities": dict(card.capabilities)}
