"""`penstock doctor`: what stands in the way of a flow, each with what mends it."""

from __future__ import annotations

from dataclasses import asdict

import typer

from penstock.cli.files import FlowOption, JsonOption, StateOption, running_flow, state_directory
from penstock.cli.screen import Screen


def doctor(flow: FlowOption, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Check a flow's source, destinations and worker: ✓ and ✗, each ✗ with the SQL or the sentence that mends it.

    Changes nothing. Exit codes: 0 all ✓, 1 at least one ✗, 2 the flow file has problems.
    """
    from penstock.control.checks import examine

    definition = running_flow(flow)
    screen = Screen()
    groups = []
    for group in examine(definition, state_directory(state)):
        groups.append(group)
        if not as_json:
            screen.line(group.title, "bold")
            for finding in group.findings:
                screen.finding(finding)
    failed = sum(not finding.ok for group in groups for finding in group.findings)
    if as_json:
        shown = [{"title": g.title, "ok": g.ok, "findings": [asdict(f) for f in g.findings]} for g in groups]
        screen.data({"flow": definition.name, "ok": not failed, "groups": shown})
    else:
        verdict = "nothing stands in the way" if not failed else f"{failed} thing{'s' if failed > 1 else ''} to mend"
        screen.line(f"{definition.name}: {verdict}", "red" if failed else "green")
    if failed:
        raise typer.Exit(1)
