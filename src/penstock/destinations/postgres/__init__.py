"""The postgres destination: tables in a PostgreSQL database, one transaction per epoch."""

from penstock.core.card import Card
from penstock.destinations.postgres.options import PostgresOptions

CARD = Card(
    kind="destination",
    name="postgres",
    summary="Tables in a PostgreSQL database (14 to 18), kept equal to the source, one transaction per epoch",
    options=PostgresOptions,
    parts={
        "destination": "penstock.destinations.postgres.destination:PostgresDestination",
        "writer": "penstock.destinations.postgres.writer:PostgresWriter",
    },
    capabilities={
        "delivery": "exactly once: rows and position in one transaction",
        "shape": "table",
        "needs_key": True,
        "deletes": True,
        "truncate": True,
        "key_changes": True,
        "holds_position": True,
        "max_wait": 0.0,
        "max_bytes": 64 << 20,
    },
)
