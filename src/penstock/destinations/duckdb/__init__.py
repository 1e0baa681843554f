"""The duckdb destination: tables in a DuckDB file, one transaction per epoch."""

from penstock.core.card import Card
from penstock.destinations.duckdb.options import DuckDBOptions

CARD = Card(
    kind="destination",
    name="duckdb",
    summary="Tables in a DuckDB file, kept equal to the source, one transaction per epoch",
    options=DuckDBOptions,
    parts={
        "destination": "penstock.destinations.duckdb.destination:DuckDBDestination",
        "writer": "penstock.destinations.duckdb.writer:DuckDBWriter",
    },
    capabilities={
        "delivery": "exactly once: rows and position in one transaction",
        "shape": "table",
        "needs_key": True,
        "deletes": True,
        "truncate": True,
        "key_changes": True,
        "holds_position": True,
        # An epoch costs 5 to 20 ms of CPU, however small (README): ten a second keep a busy flow below a fifth of a core.
        "max_wait": 0.1,
        "max_bytes": 64 << 20,
    },
)
