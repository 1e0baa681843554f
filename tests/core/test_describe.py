"""Options described for people."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from penstock.core.card import Kind
from penstock.core.connectors import ROOMS, cards
from penstock.core.describe import describe
from penstock.core.options import Duration, Options, Size


class Sample(Options):
    """Options of every kind."""

    path: Annotated[str, Field(min_length=1, json_schema_extra={"secret": True})]
    """Where it
    is."""
    wait: Duration = 10.0
    """W."""
    size: Annotated[Size, Field(ge=1)] = 64 << 20
    """S."""
    mode: Literal["a", "b"] = "a"
    """M."""
    maybe: Duration | None = None
    """O."""
    names: tuple[str, ...] = ("x", "y")
    """N."""
    on: bool = True
    """B."""


def test_types_and_defaults_read_as_people_write_them() -> None:
    found = {o.name: (o.type, o.default) for o in describe(Sample)}
    assert found == {
        "path": ("text", ""),
        "wait": ("duration", "10s"),
        "size": ("size", "64MiB"),
        "mode": ("a | b", "a"),
        "maybe": ("duration", "not set"),
        "names": ("list of text", "[x, y]"),
        "on": ("true or false", "true"),
    }
    first = next(iter(describe(Sample)))
    assert first.required and first.secret and first.help == "Where it is."


def test_every_option_of_every_connector_has_help_and_a_type() -> None:
    kinds: list[Kind] = list(ROOMS)
    for kind in kinds:
        for card in cards(kind).values():
            for option in describe(card.options):
                assert option.help, f"{kind} {card.name}: {option.name} has no help"
                assert option.type != "value", f"{kind} {card.name}: {option.name} has a type that nobody can read"
