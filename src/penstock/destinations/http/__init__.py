"""The http destination: every change as JSON to a web address, with a key by which repeats are known."""

from penstock.core.card import Card
from penstock.destinations.http.options import HttpOptions

CARD = Card(
    kind="destination",
    name="http",
    summary="Changes as JSON to a web address, one or many a request, in order per key",
    options=HttpOptions,
    parts={
        "destination": "penstock.destinations.http.destination:HttpDestination",
        "writer": "penstock.destinations.http.writer:HttpWriter",
    },
    capabilities={
        "delivery": "at least once; every change carries an idempotency key that is the same on every replay",
        "shape": "log",
        "needs_key": False,
        "deletes": True,
        "truncate": True,
        "key_changes": True,
        "holds_position": False,
        "sends": True,
        "max_wait": 0.0,
        # What a crash makes a receiver see again, and what lies between two checkpoints: some 20,000 changes.
        "max_bytes": 4 << 20,
    },
    extra="http",
)
