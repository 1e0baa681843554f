"""What a flow has on its source's server: of a flow file, asked here; of a created flow, asked of the control plane."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.connection import control_plane
from penstock.cli.files import is_there, running_flow, state_directory

if TYPE_CHECKING:
    from penstock.client.plane import ControlPlane
    from penstock.control.source_answers import (
        CandidateList,
        PublicationAnswer,
        PublicationChange,
        SlotAnswer,
        SlotDropped,
        SlotList,
    )

FlowOption = Annotated[
    str, typer.Option("--flow", metavar="FILE|NAME", help="The flow file, or a created flow's name.", show_default=False)
]


class FilePlane:
    """The part of a control plane that a flow file is enough for."""

    def __init__(self, file: Path, state: Path | None) -> None:
        self._flow, self._state = running_flow(file), state

    @property
    def name(self) -> str:
        """The flow's name."""
        return self._flow.name

    def publication(self, flow: str) -> PublicationAnswer:
        """What the flow's publication sends."""
        from penstock.control import source_objects

        return source_objects.publication(self._flow)

    def candidates(self, flow: str, patterns: Sequence[str] = ()) -> CandidateList:
        """Tables that are or could be published."""
        from penstock.control import source_objects

        return source_objects.candidates(self._flow, patterns)

    def add_tables(self, flow: str, tables: Sequence[str], *, snapshot: bool = False) -> PublicationChange:
        """Adds tables to the publication; with `snapshot` their rows are loaded first."""
        from penstock.control import source_objects

        return source_objects.add_tables(self._flow, state_directory(self._state), tables, snapshot=snapshot)

    def remove_tables(self, flow: str, tables: Sequence[str]) -> PublicationChange:
        """Takes tables out of the publication."""
        from penstock.control import source_objects

        return source_objects.remove_tables(self._flow, tables)

    def sync_publication(
        self, flow: str, mode: Literal["add", "sync"] | None = None, *, dry_run: bool = False
    ) -> PublicationChange:
        """Brings the publication in line with the flow's patterns."""
        from penstock.control import source_objects

        return source_objects.sync_publication(self._flow, mode, dry_run=dry_run)

    def slots(self, flow: str) -> SlotList:
        """Every slot of the source's server."""
        from penstock.control import source_objects

        return source_objects.slots(self._flow)

    def slot(self, flow: str, name: str | None = None) -> SlotAnswer:
        """One slot, the flow's own unless another is named."""
        from penstock.control import source_objects

        return source_objects.slot(self._flow, name)

    def drop_slot(self, flow: str, name: str | None = None) -> SlotDropped:
        """Drops a slot that nobody reads from."""
        from penstock.control import source_objects

        return source_objects.drop_slot(self._flow, name)


def is_file(flow: str) -> bool:
    """Whether a flow was given by its file: what is there, or could be no flow's name."""
    return is_there(flow) or not re.fullmatch(r"[A-Za-z0-9_-]{1,63}", flow)


@contextmanager
def source_plane(flow: str, state: Path | None, server: str | None) -> Iterator[tuple[FilePlane | ControlPlane, str]]:
    """Who answers for the flow's source, and the flow's name: the file itself, or the control plane that has the flow."""
    if is_file(flow):
        plane = FilePlane(Path(flow), state)
        yield plane, plane.name
        return
    with control_plane(server, state) as found:
        yield found, flow
