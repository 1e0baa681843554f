"""What happens when the journal is full: trimmed early, and a destination that pins it waited for or given up, never the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.flow import Flow
from penstock.core.options import format_size
from penstock.engine.acknowledgement import waits_for
from penstock.errors import JournalFull

RELIEF = 0.9
"""Reading goes on when the journal is below this share of its limit: at the limit itself it would stop and go by turns."""


@dataclass(frozen=True)
class Standing:
    """How a destination stands to the journal."""

    name: str
    position: int
    idle: bool
    """It has everything that the journal shows."""
    released: bool = False
    """It was given up, and what it has not taken may go."""


@dataclass(frozen=True)
class Relief:
    """What is to be done now."""

    hold: bool
    """The source's log is not read."""
    give_up: JournalFull | None = None
    """Why a destination is given up; its fact `destination` says which."""


def relief(flow: Flow, size: int, standings: Sequence[Standing], holding: bool) -> Relief:
    """What the flow's rule says for a journal of this size that can be trimmed no further.

    Only a destination that is behind is waited for: an open transaction may be larger than the limit, and to stop reading it
    would be to wait for ever.
    """
    limit = flow.config.journal.max_bytes
    behind = [s for s in standings if not s.idle and not s.released]
    if size <= limit or not behind:
        return Relief(holding and bool(behind) and size > limit * RELIEF)
    laggard = min(behind, key=lambda s: s.position)
    rule = flow.config.journal.when_full
    awaited = waits_for(flow, laggard.name, {s.name: s.position for s in standings})
    if rule == "pause" or (rule == "auto" and awaited):
        return Relief(True)
    reason = (
        f"destination {laggard.name} is so far behind that the journal has {format_size(size)} of at most {format_size(limit)}"
    )
    return Relief(False, JournalFull(reason, destination=laggard.name))
