"""The files destination: a change log in Parquet or JSON files, published epoch by epoch."""

from penstock.core.card import Card
from penstock.destinations.files.options import FilesOptions

CARD = Card(
    kind="destination",
    name="files",
    summary="Change log in Parquet or JSON files under a directory, with a manifest per epoch",
    options=FilesOptions,
    parts={
        "destination": "penstock.destinations.files.destination:FilesDestination",
        "writer": "penstock.destinations.files.writer:FilesWriter",
    },
    capabilities={
        "delivery": "exactly once for readers by manifest; whole files only for readers by directory",
        "shape": "log",
        "needs_key": False,
        "deletes": True,
        "truncate": True,
        "key_changes": True,
        "holds_position": True,
        # An epoch is at least one file and one manifest: 2 s keeps a quiet table below 50,000 files a day.
        "max_wait": 2.0,
        "max_bytes": 256 << 20,
    },
)
