"""Requests: what may be asked of the control plane, in the shapes that the API, the client and the command line share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from penstock.control.answers import Role


def _printable(value: str) -> str:
    # Half characters cannot be written anywhere, and NUL not in PostgreSQL.
    if "\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise ValueError("has characters that are none")
    return value


Why = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_printable)]
Word = Annotated[str, StringConstraints(max_length=255), AfterValidator(_printable)]
Number = Annotated[int, Field(ge=1, le=2**53)]


class Request(BaseModel):
    """The base of everything that is sent; a field that is not known is refused, because it would not act."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, extra="forbid", hide_input_in_errors=True)


class FlowCreation(Request):
    """A flow to be created."""

    definition: dict[str, Any]
    """One source, its transforms, its destinations and rules; secrets only as ${env:…} or ${file:…}."""
    start: bool = False
    """Whether it is to run at once."""
    why: Why | None = None


class FlowUpdate(Request):
    """Another definition of a flow."""

    definition: dict[str, Any]
    why: Why | None = None


class CleanupRequest(Request):
    """What a flow has made, to be removed."""

    remove_state: bool = False
    """Whether its journal, checkpoints and staged files go too, so that its next start is its first."""


class Reason(Request):
    """Why something is asked for; kept in the flow's history."""

    why: Why | None = None


class DefinitionRequest(Request):
    """A definition to look at."""

    definition: dict[str, Any]


class LetterChoice(Request):
    """Which letters: by number, or of one destination, of tables that fit a pattern; or all of the flow."""

    ids: list[Number] = []
    destination: Annotated[str, StringConstraints(max_length=63), AfterValidator(_printable)] | None = None
    table: Word | None = None
    all: bool = False
    """Must be true when nothing else is said."""


class TokenCreation(Request):
    """A token to be made."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@-]{1,63}$")]
    role: Role


class BackfillStart(Request):
    """Tables to be read again while the flow streams."""

    tables: Annotated[list[Word], Field(min_length=1, max_length=1000)]
    """Tables or patterns: public.orders, public.*"""
    where: (
        Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000), AfterValidator(_printable)]
        | None
    ) = None
    """Only rows that fulfil this condition; it is SQL that the source runs, and takes an admin."""
    destinations: Annotated[list[Word], Field(max_length=100)] = []
    """Only for these; for all when none is named."""


class TableChoice(Request):
    """Tables of a publication."""

    tables: Annotated[list[Word], Field(min_length=1, max_length=1000)]
    """schema.table, a pattern (sales.*), or quoted as in SQL."""


class TableAddition(TableChoice):
    """Tables to be added to a publication."""

    snapshot: bool = False
    """Whether their rows are loaded first, while the flow goes on."""


class PublicationSync(Request):
    """A publication to be brought in line with the flow's patterns."""

    mode: Literal["add", "sync"] | None = None
    """sync also drops; the flow's own setting when not said."""
    dry_run: bool = False
    """Only say what would change."""


class Rewinding(Request):
    """A destination to be sent again what it has had."""

    destination: Word
    to: Word
    """After which position, such as 0/16B6C50, or oldest."""


class TableRelease(Request):
    """A quarantined table to be released."""

    destination: Word
    table: Word
    """schema.table"""
    skip_missed: bool = False
    """Whether what it has missed stays missing."""


class StagingResolution(Request):
    """Staging tables to be merged into their tables."""

    destination: Word | None = None
    """All destinations when not said."""
    tables: Annotated[list[Word], Field(max_length=1000)] = []
    """schema.table, or a pattern (sales.*); all when none is named."""


class SlotChoice(Request):
    """Which slot."""

    slot: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,63}$")] | None = None
    """The flow's own when not said."""
