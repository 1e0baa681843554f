"""Where commands go: to a server that was named, else to the state directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.files import state_directory
from penstock.embedded.cache import home_directory

if TYPE_CHECKING:
    from penstock.client.plane import ControlPlane

profile_on_line: ContextVar[bool] = ContextVar("profile_on_line", default=False)
"""Whether the line names the profile: then the environment's token and authorities are another server's."""


def _of_profile(context: typer.Context, given: str | None) -> str | None:
    """The server that was named, else the profile's; a state directory on the line is meant instead of what is set elsewhere."""
    if context.resilient_parsing:
        return given
    source = context.get_parameter_source("server")
    on_line = source is not None and source.name == "COMMANDLINE"
    if context.params.get("state") is not None:
        if on_line:
            raise typer.BadParameter("a state directory is named too: a server keeps its own", param_hint="--server")
        if not profile_on_line.get():
            return None
        raise typer.BadParameter("a profile is named too: its server keeps its own state", param_hint="--state")
    if given:
        return given
    if not (home_directory() / "config.yaml").is_file() and not os.environ.get("PENSTOCK_PROFILE"):
        return None
    from penstock.cli.profiles import chosen

    profile = chosen()
    return profile.server if profile is not None else None


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        envvar="PENSTOCK_SERVER",
        help="Ask this server (http, https, grpc, grpcs), with the token in PENSTOCK_TOKEN; else the profile's, with its own"
        " where --profile names it; else the state directory is used.",
        show_default=False,
        callback=_of_profile,
    ),
]


@contextmanager
def control_plane(server: str | None, state: Path | None) -> Iterator[ControlPlane]:
    """The control plane that was named, given back afterwards."""
    plane: ControlPlane
    if server:
        from penstock.client.remote import Client

        token, authorities = os.environ.get("PENSTOCK_TOKEN", "").strip() or None, os.environ.get("PENSTOCK_CA_FILE") or None
        alone = profile_on_line.get()
        if (home_directory() / "config.yaml").is_file() and (alone or not (token and authorities)):
            from penstock.cli.profiles import authorities_of, of_server, token_of

            profile = of_server(server)
            if profile is not None:
                # A token may be an admin's, and shown to another server it is that server's.
                token, authorities = (None, None) if alone else (token, authorities)
                token, authorities = token or token_of(profile), authorities or authorities_of(profile)
        plane = Client(server, token, ca_file=authorities)
    else:
        from penstock.client.local import LocalPlane

        plane = LocalPlane(state_directory(state))
    try:
        yield plane
    finally:
        plane.close()
