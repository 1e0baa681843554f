"""`penstock connectors`: what is installed, from the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.files import JsonOption
from penstock.cli.screen import Screen
from penstock.errors import ConnectorUnknown

if TYPE_CHECKING:
    from penstock.core.card import Card


def connectors(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show one connector with its options.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List connectors, or show one with its options, defaults and capabilities.

    Exit codes: 0 shown, 2 no connector of that name.
    """
    from penstock.control.sentences import suggest
    from penstock.core.connectors import ROOMS, cards

    found = [card for kind in ROOMS for card in cards(kind).values()]
    screen = Screen()
    if name is None:
        if as_json:
            screen.data([_data(card) for card in found])
        else:
            screen.table(["KIND", "NAME", "WHAT IT IS"], [[card.kind, card.name, card.summary] for card in found])
        return
    chosen = [card for card in found if card.name == name]
    if not chosen:
        known = sorted({card.name for card in found})
        raise ConnectorUnknown(f"There is no connector named {name!r}.", remedy=suggest(name, known, "connectors"))
    if as_json:
        screen.data([_data(card) for card in chosen])
        return
    for card in chosen:
        _show(screen, card)


def _show(screen: Screen, card: Card) -> None:
    screen.line(f"{card.kind} {card.name}", "bold")
    screen.line(card.summary)
    if card.extra:
        screen.line(f"needs: pip install 'penstock[{card.extra}]'")
    from penstock.core.describe import describe

    options = list(describe(card.options))
    if options:
        screen.line()
        rows = [[o.name, o.type, "required" if o.required else o.default, o.help] for o in options]
        screen.table(["OPTION", "TYPE", "DEFAULT", "WHAT IT DOES"], rows)
    if card.capabilities:
        screen.line()
        screen.table(["CAPABILITY", "VALUE"], [[key, _word(value)] for key, value in card.capabilities.items()])
    screen.line()


def _word(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _data(card: Card) -> dict[str, Any]:
    from penstock.core.describe import describe

    return {
        "kind": card.kind,
        "name": card.name,
        "summary": card.summary,
        "extra": card.extra,
        "capabilities": dict(card.capabilities),
        "options": [option.to_data() for option in describe(card.options)],
    }
