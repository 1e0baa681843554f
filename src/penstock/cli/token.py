"""`penstock token create|list|revoke` and `penstock audit`: who may ask a server, and who has asked for what."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli.connection import ServerOption, control_plane
from penstock.cli.files import JsonOption, StateOption
from penstock.cli.screen import Screen

app = typer.Typer(help="Tokens for a server's API.", no_args_is_help=True, rich_markup_mode=None)


class TokenRole(StrEnum):
    """What a token allows."""

    viewer = "viewer"
    operator = "operator"
    admin = "admin"


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is; every action is recorded under it.")],
    role: Annotated[TokenRole, typer.Option("--role", help="viewer reads, operator steers, admin also defines flows.")],
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and show it, this once. From the first token on everybody needs one."""
    with control_plane(server, state) as plane:
        made = plane.create_token(name, role.value)
    screen = Screen()
    if as_json:
        screen.data(made.model_dump(mode="json"))
    else:
        # Alone on stdout, so that it can be taken by a variable.
        print(made.token)


@app.command("list")
def list_tokens(server: ServerOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """List the tokens, without their texts."""
    with control_plane(server, state) as plane:
        found = plane.tokens().tokens
    screen = Screen()
    if as_json:
        screen.data([token.model_dump(mode="json") for token in found])
        return
    rows = [
        [t.id, t.name, t.role, f"{t.created_at:%Y-%m-%d %H:%M:%SZ}", t.created_by, "revoked" if t.revoked_at else ""]
        for t in found
    ]
    screen.table(["id", "name", "role", "created", "by", ""], rows)


@app.command("revoke")
def revoke(
    number: Annotated[str, typer.Argument(metavar="ID", help="Which; `penstock token list` shows them.")],
    server: ServerOption = None,
    state: StateOption = None,
) -> None:
    """Make a token worthless from now on."""
    with control_plane(server, state) as plane:
        plane.revoke_token(number)
    Screen().line(f"token {number} revoked", "green")


def audit(
    flow: Annotated[str | None, typer.Option("--flow", metavar="NAME", help="About this flow.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=500, help="How many.")] = 50,
    before: Annotated[int | None, typer.Option("--before", metavar="ID", min=1, help="Older ones.", show_default=False)] = None,
    server: ServerOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who asked for what, and what became of it, the newest first; refusals too."""
    with control_plane(server, state) as plane:
        page = plane.audit(before=before, limit=limit, flow=flow)
    screen = Screen()
    if as_json:
        screen.data(page.model_dump(mode="json"))
        return
    rows = [
        [str(r.id), f"{r.at:%Y-%m-%d %H:%M:%SZ}", f"{r.who} ({r.role})", r.action, r.flow or "", r.outcome, r.detail or ""]
        for r in page.records
    ]
    screen.table(["id", "at", "who", "action", "flow", "outcome", "detail"], rows)
