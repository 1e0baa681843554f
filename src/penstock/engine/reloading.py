"""What a changed definition means for a running flow: which destinations begin, end, or begin anew, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.core.flow import DestinationUse, Flow
from penstock.errors import EngineError, FlowChanged, LedgerFenced, PenstockError, ReloadUnfinished


@dataclass(frozen=True)
class Changes:
    """The names of destinations, in the order of the definition."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    """Those that are as they were, and had failed."""
    rules: bool = False
    """Whether rules between source and destinations have changed that need no restart."""

    def leaves(self, name: str) -> bool:
        """Whether a destination that runs stays as it is."""
        return name not in (*self.removed, *self.restarted)

    def __str__(self) -> str:
        words = [f"{verb} {', '.join(names)}" for verb, names in vars(self).items() if names and verb != "rules"]
        words += ["rules changed"] if self.rules else []
        return "; ".join(words) or "nothing has changed"


def compare(old: Flow, new: Flow) -> Changes:
    """What has to be done; FlowChanged for what cannot be changed while the flow runs."""
    _refuse(old, new)
    before = {use.name: use for use in old.destinations}
    after = {use.name: use for use in new.destinations}
    both = [name for name in after if name in before]
    restarted = tuple(name for name in both if _delivery(old, before[name]) != _delivery(new, after[name]))
    return Changes(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        restarted=restarted,
        rules=old.config != new.config or any(before[n].required != after[n].required for n in both),
    )


@contextmanager
def past_refusing(flow: str) -> Iterator[None]:
    """From where on a change of the flow cannot be refused any more: what fails in here ends the worker, not the change."""
    try:
        yield
    except (EngineError, LedgerFenced):
        raise
    except PenstockError as error:
        raise ReloadUnfinished(f"flow {flow} was changed by half: {error.code}: {error.message}") from error


def kept(flow: Flow) -> str:
    """What the ledger keeps: names, types, labels and rules. Options may hold secrets, and are the file's to say."""
    return flow.model_dump_json(
        include={
            "name": True,
            "source": {"type"},
            "destinations": {"__all__": {"name", "type", "required"}},
            "config": True,
            "labels": True,
        }
    )


def _refuse(old: Flow, new: Flow) -> None:
    if new.name != old.name:
        raise FlowChanged(
            f"flow {old.name} is called {new.name} in its file now",
            remedy="Give it its name back: a flow's state belongs to its name. Another name is another flow.",
        )
    if new.source != old.source:
        raise FlowChanged(
            f"the source of flow {old.name} has changed, and nothing was taken over from the file",
            remedy="Restart the worker for other options of the same source; another source needs a flow of its own.",
        )
    if new.config.journal.url != old.config.journal.url:
        raise FlowChanged(
            f"the journal of flow {old.name} lies elsewhere in its file now",
            remedy="Stop the worker, move the journal's directory there, and start the worker again.",
        )
    if new.transforms != old.transforms:
        raise FlowChanged(
            f"the transforms of flow {old.name} have changed", remedy="Restart the worker: an epoch must not change halfway."
        )


def _delivery(flow: Flow, use: DestinationUse) -> tuple[object, ...]:
    """Everything that a destination's loop and lanes are made from."""
    rules = flow.config
    return (
        use.type,
        use.options,
        use.batch,
        use.retry or rules.retry,
        rules.batch,
        rules.give_up_policy,
        rules.dead_letter,
        use.on_table_failure or rules.on_table_failure,
        flow.parallelism,
    )
