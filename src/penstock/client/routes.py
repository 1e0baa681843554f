"""Where each operation is found over REST; what is asked is the same over gRPC, whose names the operations have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Route:
    """An operation's address; what is not named in it, nor as query or header, is the body."""

    method: str
    path: str
    query: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    """Names that the query has for what is asked."""

    def address(self, asked: Mapping[str, Any]) -> tuple[str, ...]:
        """The parts of the path."""
        return tuple(part.format(**asked) for part in self.path.split("/"))

    def parameters(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The query."""
        names = dict(self.renamed)
        return {names.get(name, name): asked.get(name) for name in self.query}

    def headers(self, asked: Mapping[str, Any]) -> dict[str, str]:
        """What travels beside the request."""
        found = {"Idempotency-Key": asked.get("key"), "If-Match": f'"{asked["etag"]}"' if asked.get("etag") is not None else None}
        return {name: value for name, value in found.items() if value is not None}

    def body(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """What is sent; None when the operation takes no body."""
        if self.method not in ("POST", "PUT"):
            return None
        elsewhere = {*self.query, "key", "etag", *(name for name in asked if f"{{{name}}}" in self.path)}
        return {name: value for name, value in asked.items() if name not in elsewhere}


_FLOW, _LETTERS, _LOADS = "v1/flows/{name}", "v1/flows/{flow}/dead-letters", "v1/flows/{flow}/backfills"
_PAGE = ("after", "limit")
ROUTES: Mapping[str, Route] = {
    "Flows.Create": Route("POST", "v1/flows"),
    "Flows.Get": Route("GET", _FLOW),
    "Flows.List": Route("GET", "v1/flows", (*_PAGE, "labels", "states"), (("states", "state"),)),
    "Flows.Update": Route("PUT", _FLOW),
    "Flows.Reconfigure": Route("POST", f"{_FLOW}/reconfigure", ("wait",)),
    "Flows.Cleanup": Route("POST", f"{_FLOW}/cleanup"),
    "Flows.Delete": Route("DELETE", _FLOW, ("why", "cleanup")),
    **{f"Flows.{c.capitalize()}": Route("POST", f"{_FLOW}/{c}", ("wait",)) for c in ("start", "pause", "resume", "stop", "run")},
    "Flows.Reload": Route("POST", f"{_FLOW}/reload", ("wait",)),
    "Flows.Rewind": Route("POST", f"{_FLOW}/rewind"),
    "Flows.Release": Route("POST", f"{_FLOW}/release"),
    "Flows.ResolveStaging": Route("POST", f"{_FLOW}/resolve-staging", ("wait",)),
    "Flows.ListRevisions": Route("GET", f"{_FLOW}/revisions", ("limit",)),
    "Flows.ListCheckpoints": Route("GET", f"{_FLOW}/checkpoints", ("destination", "limit")),
    "Flows.ListSchemas": Route("GET", f"{_FLOW}/schemas", ("table", "at")),
    "Flows.Examine": Route("POST", f"{_FLOW}/doctor"),
    "Events.List": Route("GET", "v1/events", ("flow", *_PAGE)),
    "Events.Watch": Route("GET", "v1/watch", ("flow", "after", "seconds")),
    "DeadLetters.List": Route("GET", _LETTERS, ("destination", "table", *_PAGE)),
    "DeadLetters.Get": Route("GET", f"{_LETTERS}/{{number}}"),
    "DeadLetters.Replay": Route("POST", f"{_LETTERS}/replay"),
    "DeadLetters.Discard": Route("POST", f"{_LETTERS}/discard"),
    "Backfills.Start": Route("POST", _LOADS),
    "Backfills.List": Route("GET", f"{_FLOW}/backfills", ("before", "limit")),
    "Backfills.Get": Route("GET", f"{_LOADS}/{{number}}"),
    **{f"Backfills.{c.capitalize()}": Route("POST", f"{_LOADS}/{{number}}/{c}") for c in ("pause", "resume", "cancel")},
    "Publications.Get": Route("GET", f"{_FLOW}/publication"),
    "Publications.Discover": Route("GET", "v1/flows/{flow}/publication/candidates", ("tables",)),
    **{f"Publications.{c.capitalize()}": Route("POST", f"v1/flows/{{flow}}/publication/{c}") for c in ("add", "remove", "sync")},
    "Slots.List": Route("GET", f"{_FLOW}/slots"),
    "Slots.Get": Route("GET", "v1/flows/{flow}/slot", ("slot",)),
    "Slots.Drop": Route("DELETE", "v1/flows/{flow}/slot", ("slot",)),
    "Connectors.List": Route("GET", "v1/connectors"),
    "Connectors.Get": Route("GET", "v1/connectors/{kind}/{name}"),
    "Connectors.Validate": Route("POST", "v1/validate"),
    "People.CreateToken": Route("POST", "v1/tokens"),
    "People.ListTokens": Route("GET", "v1/tokens"),
    "People.RevokeToken": Route("DELETE", "v1/tokens/{number}"),
    "People.ListAudit": Route("GET", "v1/audit", ("before", "limit", "flow")),
    "Server.Get": Route("GET", "v1/server"),
}
