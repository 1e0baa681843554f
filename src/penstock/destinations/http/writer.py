"""Executor half of the http destination: sends one bucket's changes; a second try sends the same with the same keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import Batch, Op
from penstock.core.epoch import Epoch
from penstock.destinations.base import Place, Receipt, Writer
from penstock.destinations.http import wave
from penstock.destinations.http.client import Client
from penstock.destinations.http.delivery import Delivery, Track
from penstock.destinations.http.options import HttpOptions
from penstock.destinations.http.request import Requests
from penstock.destinations.http.wave import waves
from penstock.destinations.unrepresentable import settle
from penstock.formats.layout import without_leaves
from penstock.observe import failpoints


class HttpWriter(Writer):
    """Sends changes; its connections stay open from epoch to epoch."""

    options: HttpOptions

    def __init__(self, place: Place, options: HttpOptions) -> None:
        super().__init__(place, options)
        self._client: Client[Track] = Client(options)
        self._requests = Requests(options)

    def write(self, epoch: Epoch, bucket: int, batches: Iterator[Batch]) -> Receipt:
        """Returns when the server has answered for every change."""
        nulled: Counter[str] = Counter()
        delivery = Delivery(self._client, self._requests, self.options, sets_aside=self.sets_aside, progress=self.progress)
        delivery.aside.waits = self.aside is None or self.aside.waits
        failpoints.reach("lane.before_send")
        for found in waves(self._changes(batches, bucket, nulled), epoch.source, self._requests.end):
            delivery.send(found)
        failpoints.reach("lane.after_send")
        tables = {name: rows for name, rows in (delivery.tables - delivery.aside.tables).items() if rows}
        counts = {**delivery.counts, "unrepresentable": nulled.total(), "refused": len(delivery.aside.refused)}
        return {
            "rows": sum(tables.values()),
            "bytes": delivery.bytes,
            "tables": tables,
            "counts": {name: count for name, count in counts.items() if count},
            "nulled": dict(nulled),
            "refused": delivery.aside.refused,
        }

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def _changes(self, batches: Iterator[Batch], bucket: int, nulled: Counter[str]) -> Iterator[Batch]:
        for batch in batches:
            batch = without_leaves(settle(batch, self.options.on_unrepresentable, nulled, aside=self.aside))
            # Every bucket is given each TRUNCATE; it is sent once.
            yield batch.filter(pc.not_equal(batch.op, pa.scalar(int(Op.TRUNCATE), pa.uint8()))) if bucket else batch


def warm() -> None:
    """Compiles or loads the kernels that a lane runs."""
    wave.warm()
