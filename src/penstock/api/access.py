"""Who is at the door: a token's owner or, on a server that only this machine reaches and that no token was made for, anybody.

A page in somebody's browser also reaches loopback. So without tokens the Host must be a name of this machine, and a request that
a page of another origin has sent is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from penstock.control.caller import Caller
from penstock.control.people import People
from penstock.control.service import Service
from penstock.errors import AccessDenied, TokenMissing

LOCAL = Caller("local", "admin")
"""Whoever asks on loopback before the first token is made."""
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})

_bearer = HTTPBearer(auto_error=False, description="A token of the role viewer, operator or admin.")


def service_of(request: Request) -> Service:
    """The service layer behind the application."""
    found: Service = request.app.state.service
    return found


def caller_of(request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> Caller:
    """Who asks. TokenMissing, AccessDenied."""
    token = credentials.credentials if credentials is not None else None
    sent = [f"//{request.headers.get('host', '')}", *request.headers.getlist("origin")]
    people, is_loopback = service_of(request).people, request.app.state.settings.is_loopback
    # Who stays is asked for again: a token may be revoked meanwhile.
    request.state.admit = lambda: admit(people, token, is_loopback=is_loopback, origins=sent)
    caller: Caller = request.state.admit()
    return caller


def admit(people: People, token: str | None, *, is_loopback: bool, origins: Sequence[str]) -> Caller:
    """Who asks with that token, or without one from an address of which `origins` are. TokenMissing, AccessDenied."""
    if token is not None:
        caller = people.caller(token)
        if caller is None:
            raise TokenMissing("the token is not known here, or was revoked")
        return caller
    if not is_loopback or people.need_tokens():
        raise TokenMissing("this needs a token")
    if any(_name(origin) not in _HERE for origin in origins):
        raise AccessDenied("the request was sent by a page of another origin", remedy="Create tokens, and send one.")
    return LOCAL


def _name(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


Asking = Annotated[Caller, Depends(caller_of)]
Serving = Annotated[Service, Depends(service_of)]
