"""Rows in DuckDB equal the plain model, however the log is cut into epochs, chunks and buckets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.epoch import Epoch
from penstock.core.schema import TableSchema
from penstock.destinations.base import Place
from penstock.destinations.duckdb.destination import DuckDBDestination
from penstock.destinations.duckdb.options import DuckDBOptions
from penstock.destinations.duckdb.writer import DuckDBWriter
from penstock.destinations.folding.fold import Fold
from tests.batches import Change, batch, insert
from tests.table_model import ONE, TWO, State, key_of, logs, replay, shared_out, start


class Flow:
    """A destination and its writer, driven as the engine drives them."""

    def __init__(self, home: Path, **options: Any) -> None:
        place, chosen = Place("flow", "duck", home / "staging"), DuckDBOptions(path=str(home / "t.duckdb"), **options)
        self.destination, self.writer, self.home = DuckDBDestination(place, chosen), DuckDBWriter(place, chosen), home
        self.upto = 0

    def epoch(self, schema: TableSchema, buckets: Sequence[Sequence[Change]], cuts: Sequence[int] = ()) -> None:
        """One epoch of those changes."""
        epoch = Epoch("flow", "duck", "src", self.upto + 1, self.upto, self.upto + 1, len(buckets), 1)
        self.upto += 1
        self.destination.prepare([schema])
        receipts = []
        for bucket, changes in enumerate(buckets):
            edges = sorted({0, len(changes), *(min(cut, len(changes)) for cut in cuts)})
            batches = [batch(schema, changes[begin:end]) for begin, end in pairwise(edges)]
            receipts.append(self.writer.write(epoch, bucket, iter(batches)))
        self.destination.commit(epoch, receipts)

    def rows(self, schema: TableSchema) -> State:
        """What the table holds."""
        with self.destination._connection.use() as connection:
            found = connection.execute(f'SELECT * FROM "{schema.schema}"."{schema.name}"').to_arrow_table().to_pylist()
        state = {key_of(schema, row): row for row in found}
        assert len(state) == len(found), "a key is there twice"
        return state


@pytest.mark.slow
@pytest.mark.parametrize("schema", [ONE, TWO], ids=["one key column", "two key columns"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_log_in_any_cut_gives_the_model_s_rows(
    schema: TableSchema, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    changes = data.draw(logs(schema))
    cuts = data.draw(st.lists(st.integers(1, 40), max_size=4))
    buckets = data.draw(st.integers(1, 3))
    most = data.draw(st.sampled_from([1, 60, 1 << 30]))
    flow = Flow(tmp_path_factory.mktemp("flow"))
    try:
        with patch("penstock.destinations.folding.writer.Fold", lambda **more: Fold(most, **more)):
            flow.epoch(schema, [[insert(row) for row in start(schema).values()]])
            flow.epoch(schema, shared_out(schema, changes, buckets), cuts)
        assert flow.rows(schema) == replay(schema, changes, start(schema))
    finally:
        flow.destination.close()
