"""A flow's definition: one source, its transforms, its destinations, and the rules between them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints

from penstock.core.options import Duration, Options, Size
from penstock.core.position import parse_lsn

TableFailure = Literal["stop", "quarantine"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,63}$")]


def _start(value: str) -> str:
    if value not in ("oldest", "now", "backfill"):
        try:
            parse_lsn(value)
        except ValueError:
            raise ValueError(
                "a destination starts at `oldest`, at `now`, with a `backfill`, or at a position such as 0/16B6C50"
            ) from None
    return value


class ConnectorUse(Options):
    """A connector by its type and options."""

    type: str
    """Name of the connector; `penstock connectors` lists them."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The connector's own options; `penstock connectors NAME` lists them."""


class BatchRules(Options):
    """How much one epoch takes; what is not set here comes from the flow, then from the destination's card."""

    max_rows: Annotated[int, Field(ge=1)] | None = None
    """An epoch ends at the first commit boundary at or past this many changes."""
    max_bytes: Size | None = None
    """An epoch ends at the first commit boundary at or past this many journal bytes."""
    max_wait: Duration | None = None
    """How long the oldest change may wait for company before the epoch is closed."""
    respect_source_tx: bool | None = None
    """Whether an epoch holds whole transactions only (the default). With false, one that is larger than max_rows or max_bytes is
    delivered in several epochs, and a reader of the destination may see a part of it."""


class RetryRules(Options):
    """How a failing destination is tried again."""

    max_attempts: Annotated[int, Field(ge=1)] = 10
    """Tries before the destination is given up (see give_up_policy)."""
    base: Duration = 0.2
    """Wait before the second try."""
    max: Duration = 30.0
    """Longest wait between tries."""
    factor: Annotated[float, Field(ge=1)] = 2.0
    """Growth of the wait from try to try."""


class JournalRules(Options):
    """Where the journal lies and how long it is kept."""

    url: str | None = None
    """Directory of the journal; the state directory's `journal/` when not set."""
    retention: Duration = 86400.0
    """How long a segment is kept after every destination has passed it."""
    max_bytes: Size = 50 << 30
    """Segments that every destination has passed are trimmed early when the journal grows past this."""
    when_full: Literal["auto", "pause", "fail"] = "auto"
    """What happens when a destination that is behind pins more than max_bytes: `pause` stops reading from the source until it has
    caught up, `fail` gives that destination up (ack_policy still counts it), `auto` pauses for one that ack_policy waits for and
    fails any other."""


class DeadLetterRules(Options):
    """What happens to a change that a destination refuses for good."""

    enabled: bool = True
    """Whether it is set aside, so that the destination goes on; false stops the destination at it."""
    max_age: Annotated[Duration, Field(gt=0)] = 7 * 86400.0
    """How long it is kept; then it is removed, which is logged and counted."""
    later: Literal["wait", "follow"] = "wait"
    """Whether later changes of its key wait behind it until it is replayed or discarded, or are delivered."""
    max_open: Annotated[int, Field(ge=1)] = 10_000
    """How many a destination may have; more stop it with an error."""


class FlowRules(Options):
    """The rules between source and destinations."""

    ack_policy: Literal["all", "primary", "required", "quorum", "journal"] = "all"
    """Who must hold a position before the source is told it: all, the primary, the required, a quorum, or the journal."""
    primary_destination: str | None = None
    """The destination that `ack_policy: primary` waits for."""
    quorum: Annotated[int, Field(ge=1)] | None = None
    """How many destinations `ack_policy: quorum` waits for."""
    give_up_policy: Literal["on_retry_exhaustion", "never"] = "on_retry_exhaustion"
    """Whether a destination that used up its retries fails for good or is tried for ever."""
    failure_mode: Literal["hold_slot", "drop_slot"] = "hold_slot"
    """When the flow fails for good: `hold_slot` keeps its place in the source's log, which the server keeps growing for it;
    `drop_slot` gives the place up, so that the server's disk is safe and the flow has to begin anew."""
    on_table_failure: TableFailure = "stop"
    """When something about one table fails for good at a destination (its columns are refused, it has no key): `stop` ends the
    destination, `quarantine` passes over that table's changes, which are counted, until it is released."""
    retry: RetryRules = Field(default_factory=RetryRules)
    """How a failing destination is tried again."""
    batch: BatchRules = Field(default_factory=BatchRules)
    """How much one epoch takes."""
    dead_letter: DeadLetterRules = Field(default_factory=DeadLetterRules)
    """What happens to a change that a destination refuses for good."""
    journal: JournalRules = Field(default_factory=JournalRules)
    """Where the journal lies and how long it is kept."""


class DestinationUse(ConnectorUse):
    """A destination of the flow."""

    name: Name
    """Unique within the flow; the checkpoint belongs to it."""
    required: bool = True
    """Whether `ack_policy: required` waits for it."""
    batch: BatchRules = Field(default_factory=BatchRules)
    """Overrides the flow's batch rules for this destination."""
    retry: RetryRules | None = None
    """How this destination is tried again; the flow's rules when not set."""
    on_table_failure: TableFailure | None = None
    """What a table that fails for good does to this destination; the flow's rule when not set."""
    start: Annotated[str, AfterValidator(_start)] = "oldest"
    """Where a destination begins that the flow has not had before: `oldest`, the oldest position that the journal still has;
    `now`, where the journal ends then; `backfill`, there too, after its tables have been loaded; or after a position that the
    journal has, such as 0/16B6C50. A flow's first start loads all of its destinations as the source's `snapshot` says."""


class Flow(Options):
    """One source, any number of transforms, one or more destinations, and the rules between them."""

    name: Name
    """Unique; letters, digits, - and _."""
    source: ConnectorUse
    """Where changes come from."""
    transforms: tuple[ConnectorUse, ...] = ()
    """What happens to changes on the way, in order."""
    destinations: Annotated[tuple[DestinationUse, ...], Field(min_length=1)]
    """Where changes go."""
    wire_format: str | None = None
    """Default format of destinations that encode."""
    parallelism: Annotated[int, Field(ge=1, le=64)] = 1
    """How many lanes (Spark tasks) serve one destination side by side."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free words to find the flow by."""
    config: FlowRules = Field(default_factory=FlowRules)
    """The rules between source and destinations."""
