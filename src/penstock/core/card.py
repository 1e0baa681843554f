"""The card: what a connector declares about itself, once; help, validation, docs and conformance come from it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.core.options import Options
from penstock.errors import ExtraMissing

Kind = Literal["source", "transform", "format", "destination"]


@dataclass(frozen=True)
class Card:
    """A connector's declaration; importing it needs none of the connector's libraries.

    `parts` names what `load` finds, as `module:attribute`: a source has `source`, `capture` and `decoder`, perhaps `completer`
    and `chunks`, and `publication` and `slots` where a server has such things; a destination `destination` (driver half) and
    `writer` (executor half), a format `format`, a transform `transform`.
    """

    kind: Kind
    name: str
    summary: str
    options: type[Options]
    parts: Mapping[str, str]
    capabilities: Mapping[str, str | bool | int | float] = field(default_factory=dict)
    extra: str | None = None

    def load(self, part: str) -> Any:
        """The named part, imported now; ExtraMissing says what to install when a library is not there."""
        module, _, attribute = self.parts[part].partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if self.extra is None or (error.name or "").startswith("penstock"):
                raise
            raise ExtraMissing(
                f"{self.kind} {self.name} needs the library {error.name}, which is not installed",
                remedy=f"pip install 'penstock[{self.extra}]'",
            ) from error
