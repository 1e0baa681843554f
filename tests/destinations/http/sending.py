"""A writer of the http destination, driven as a lane drives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.core.batch import Batch
from penstock.core.epoch import Epoch
from penstock.destinations.base import Place, Receipt
from penstock.destinations.http.options import HttpOptions
from penstock.destinations.http.writer import HttpWriter
from tests.batches import Change, batch
from tests.destinations.http.receiver import Receiver
from tests.table_model import ONE

QUICK = {"backoff_base": "1ms", "backoff_max": "20ms"}


def epoch(number: int = 1) -> Epoch:
    """The epoch with that number."""
    return Epoch("flow", "http", "src1", number, (number - 1) * 1000, number * 1000, 1, 1)


@contextmanager
def writer(url: str, **options: Any) -> Iterator[HttpWriter]:
    """A writer that waits briefly between tries."""
    made = HttpWriter(Place("flow", "http", Path("/nowhere")), HttpOptions.model_validate({"url": url, **QUICK, **options}))
    try:
        yield made
    finally:
        made.close()


def send(receiver: Receiver | str, changes: Sequence[Change] | Sequence[Batch], **options: Any) -> Receipt:
    """One epoch of changes of one table, or of batches."""
    url = receiver if isinstance(receiver, str) else receiver.url
    sets_aside = options.pop("sets_aside", False)
    progress: Callable[[], None] | None = options.pop("progress", None)
    with writer(url, **options) as made:
        made.sets_aside = sets_aside
        if progress is not None:
            made.progress = progress
        return made.write(epoch(), 0, iter(_batches(changes)))


def _batches(changes: Sequence[Change] | Sequence[Batch]) -> list[Batch]:
    loose = [c for c in changes if isinstance(c, Change)]
    return [batch(ONE, loose)] if loose else [c for c in changes if isinstance(c, Batch)]
