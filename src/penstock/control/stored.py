"""A flow that is kept in the ledger, as it runs here: its references resolved where they are needed and nowhere else."""

from __future__ import annotations

from penstock.control.drafts import hidden
from penstock.control.validate import validate
from penstock.core.flow import Flow
from penstock.errors import FlowInvalid, FlowUnknown
from penstock.ledger.ledger import Ledger


def stored_flow(ledger: Ledger, name: str) -> Flow:
    """The flow, references resolved; FlowUnknown, or FlowInvalid with every problem and nothing of what is behind references."""
    found = ledger.definitions.find(name)
    if found is None:
        raise FlowUnknown(f"no flow named {name} was created here", flow=name)
    flow, problems, _ = validate(found.definition, strict=True)
    if flow is None or problems:
        raise FlowInvalid.of(f"flow {name}", hidden(found.definition, problems))
    return flow
