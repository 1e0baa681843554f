"""Profiles: servers that commands may go to, by name, in `config.yaml` of PENSTOCK_HOME.

profile: test                 # used when nothing else is said
profiles:
  test: {server: "http://127.0.0.1:8466"}
  prod: {server: "grpcs://penstock.example:8467", token: "${file:/home/ann/.penstock/prod.token}", ca_file: ca.pem}
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from penstock.control.sentences import path_of
from penstock.core.secret import has_reference, resolve
from penstock.embedded.cache import home_directory
from penstock.errors import ProfileRefused

VARIABLE = "PENSTOCK_PROFILE"


class Profile(BaseModel):
    """One server."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    server: str
    token: str | None = None
    """A reference, or the token itself in a file that nobody else can read."""
    ca_file: str | None = None
    """The authorities that its certificate may come from; beside the file unless the path is absolute."""


class Profiles(BaseModel):
    """The file's content."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    profile: str | None = None
    profiles: dict[str, Profile] = {}


def config_file() -> Path:
    """Where profiles are kept."""
    return home_directory() / "config.yaml"


def chosen() -> Profile | None:
    """The profile that was named by --profile or PENSTOCK_PROFILE, else the file's own choice, else none. ProfileRefused."""
    found = _read()
    name = os.environ.get(VARIABLE, "").strip() or found.profile
    if name is None:
        return None
    if name not in found.profiles:
        known = ", ".join(found.profiles) or "none"
        raise ProfileRefused(f"there is no profile {name} in {config_file()}", remedy=f"Write it there; it has: {known}.")
    return found.profiles[name]


def of_server(server: str) -> Profile | None:
    """The profile of that server, whose token and authorities are meant for it and no other."""
    profile = chosen()
    return profile if profile is not None and profile.server == server else None


def token_of(profile: Profile) -> str | None:
    """The profile's token, its reference resolved. ProfileRefused."""
    if profile.token is None or has_reference(profile.token):
        return _resolved(profile.token) if profile.token is not None else None
    mode = config_file().stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ProfileRefused(
            f"{config_file()} has a token, and others can read it",
            remedy=f"`chmod 600 {config_file()}`, or write the token as ${{env:…}} or ${{file:/…}}.",
        )
    return profile.token


def _resolved(text: str) -> str:
    problems: list[tuple[str, str, str]] = []
    value = resolve(text, "token", lambda *problem: problems.append(problem))
    if problems:
        raise ProfileRefused(f"the profile's token cannot be had: {problems[0][1]}", remedy=problems[0][2])
    return str(value).strip()


def authorities_of(profile: Profile) -> str | None:
    """The path of the profile's authorities."""
    return str(config_file().parent / Path(profile.ca_file).expanduser()) if profile.ca_file else None


def _read() -> Profiles:
    path = config_file()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return Profiles.model_validate(content or {})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        words = f"{path_of(first['loc'])}: {first['msg']}"
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        words = type(error).__name__
    raise ProfileRefused(f"{path} cannot be used: {words}")
