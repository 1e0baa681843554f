"""`penstock doctor`: what stands in the way of a flow, each with what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption, running_flow, state_directory
from penstock.cli.of_file import FlowOption, is_file
from penstock.cli.screen import Screen

if TYPE_CHECKING:
    from penstock.control.answers import FindingGroup


def doctor(flow: FlowOption, state: StateOption = None, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """Check a flow's source, destinations and worker: ✓ and ✗, each ✗ with the SQL or the sentence that mends it.

    A file's flow is checked here, a created flow where it runs. Changes nothing. Exit codes: 0 all ✓, 1 at least one ✗, 2 the
    flow file has problems.
    """
    from penstock.core.finding import Finding

    name, found = _examined(flow, state, server)
    screen = Screen()
    groups = []
    for group in found:
        groups.append(group)
        if not as_json:
            screen.line(group.title, "bold")
            for finding in group.findings:
                screen.finding(Finding(**finding.model_dump()))
    failed = sum(not finding.ok for group in groups for finding in group.findings)
    if as_json:
        screen.data({"flow": name, "ok": not failed, "groups": [group.model_dump(mode="json") for group in groups]})
    else:
        verdict = "nothing stands in the way" if not failed else f"{failed} thing{'s' if failed > 1 else ''} to mend"
        screen.line(f"{name}: {verdict}", "red" if failed else "green")
    if failed:
        raise typer.Exit(1)


def _examined(flow: str, state: Path | None, server: str | None) -> tuple[str, Iterator[FindingGroup]]:
    """The flow's name, and the findings about its parts, as they come."""
    if is_file(flow):
        from penstock.control.catalog import finding_group
        from penstock.control.checks import examine

        definition = running_flow(Path(flow))
        return definition.name, map(finding_group, examine(definition, state_directory(state)))
    with control_plane(server, state) as plane:
        return flow, iter(plane.doctor(flow).groups)
