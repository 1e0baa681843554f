"""A flow that is kept in the ledger, as it runs here: its references resolved where they are needed and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def placed(ledger: Ledger, flow: Flow) -> Flow:
    """The flow with its journal where its worker has found it to be, once one has.

    Its url may be a reference, and a worker's variables need not be those of who looks: what it came to is kept with the flow.
    """
    known = ledger.flows.find(flow.name)
    if known is None or not known.identity:
        # It has not begun, and has no journal.
        return flow
    journal = flow.config.journal.model_copy(update={"url": journal_url(known.definition)})
    return flow.model_copy(update={"config": flow.config.model_copy(update={"journal": journal})})


def journal_url(definition: Mapping[str, Any]) -> str | None:
    """Where a definition that the ledger keeps, of whatever version, says that the journal is."""
    url: str | None = ((definition.get("config") or {}).get("journal") or {}).get("url")
    return url
