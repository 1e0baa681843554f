"""PostgreSQL 14 to 18 as a source: logical replication with pgoutput."""

from __future__ import annotations

from penstock.core.card import Card
from penstock.sources.postgres.options import PostgresOptions

CARD = Card(
    kind="source",
    name="postgres",
    summary="PostgreSQL 14 to 18 through logical replication (pgoutput)",
    options=PostgresOptions,
    parts={
        "source": "penstock.sources.postgres.source:PostgresSource",
        "capture": "penstock.sources.postgres.capture:PostgresCapture",
        "publication": "penstock.sources.postgres.publishing:Publishing",
        "slots": "penstock.sources.postgres.slots:Slots",
        "decoder": "penstock.sources.postgres.decoder:PostgresDecoder",
        "chunks": "penstock.sources.postgres.load.reader:PostgresChunkReader",
        "completer": "penstock.sources.postgres.toast.completer:PostgresCompleter",
    },
    capabilities={
        "position": "lsn",
        "transactions": True,
        "deletes": True,
        "truncates": True,
        "key_changes": True,
        "tables_without_key": True,
        "first_load": True,
    },
)
