"""The order in which the chunks of a table's buckets are applied, so that every origin is there when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar


class Ends(Protocol):
    """Anything that knows the position and ordinal of its last change."""

    @property
    def last(self) -> tuple[int, int]:
        """Position and ordinal of the last change."""


Chunk = TypeVar("Chunk", bound=Ends)


def in_order(buckets: Sequence[Sequence[Chunk]]) -> Iterator[tuple[Chunk, list[Chunk]]]:
    """Each chunk when its turn comes, with the heads: the first chunk of every bucket that is not yet applied, itself included.

    The chunk that ends first goes first. Whatever enters it from another bucket left there at or before its end, so that
    departure is in a head or in a chunk already applied; and a head's departures can be read, because all that the
    same bucket did before is applied. Chunks of an older schema version end before those of a newer one begin.
    """
    waiting = [list(chunks) for chunks in buckets]
    while any(waiting):
        heads = [chunks[0] for chunks in waiting if chunks]
        first = min(heads, key=lambda chunk: chunk.last)
        yield first, heads
        for chunks in waiting:
            if chunks and chunks[0] is first:
                del chunks[0]
                break
