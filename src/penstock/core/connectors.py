"""The scan that finds connectors: every module of the four rooms with a CARD, and entry points of other packages."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from penstock.core.card import Card, Kind
from penstock.errors import ConnectorUnknown

ROOMS: dict[Kind, str] = {
    "source": "penstock.sources",
    "transform": "penstock.transforms",
    "format": "penstock.formats",
    "destination": "penstock.destinations",
}


@cache
def cards(kind: Kind) -> dict[str, Card]:
    """Every installed connector of a kind, by name, in name order."""
    found: dict[str, Card] = {}
    room = importlib.import_module(ROOMS[kind])
    for module in pkgutil.iter_modules(room.__path__):
        card = getattr(importlib.import_module(f"{ROOMS[kind]}.{module.name}"), "CARD", None)
        if isinstance(card, Card):
            found[card.name] = card
    for point in entry_points(group=ROOMS[kind]):
        card = point.load()
        if isinstance(card, Card):
            found.setdefault(card.name, card)
    return dict(sorted(found.items()))


def find(kind: Kind, name: str) -> Card:
    """The connector of that name; ConnectorUnknown names the nearest one."""
    known = cards(kind)
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise ConnectorUnknown(f"there is no {kind} named {name!r}", remedy=f"{hint}Installed: {', '.join(known) or 'none'}.")
