"""What a flow's source keeps on its server, opened for commands: publication and slots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.core.connectors import find
from penstock.core.flow import Flow
from penstock.errors import ConnectorUnknown


@contextmanager
def source_part(flow: Flow, part: str) -> Iterator[Any]:
    """The named part of the flow's source, closed afterwards; ConnectorUnknown when such a source has none."""
    card = find("source", flow.source.type)
    if part not in card.parts:
        raise ConnectorUnknown(
            f"a {card.name} source has no {part}", remedy=f"Name a flow whose source has a {part}; this one needs none."
        )
    opened = card.load(part)(flow.name, card.options.model_validate(flow.source.options))
    try:
        yield opened
    finally:
        opened.close()
