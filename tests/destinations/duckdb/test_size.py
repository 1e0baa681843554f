"""Big epochs in DuckDB: memory stays bounded, and many rows are as right as few."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from penstock.core.batch import Batch, Image, Op
from penstock.core.schema import TableSchema
from tests.batches import table
from tests.conformance.harness import Harness

WIDE = table(
    {
        "id": pa.int64(),
        "a": pa.int32(),
        "b": pa.string(),
        "c": (pa.decimal128(12, 2), "numeric(12,2)"),
        "d": pa.float64(),
        "e": pa.timestamp("us", "UTC"),
        "f": pa.bool_(),
        "g": (pa.string(), "uuid"),
    }
)
BIG = table({"id": pa.int64(), "v": pa.int32(), "big": pa.string()})


def some(schema: TableSchema, rows: list[pa.Array], op: Any, first: int, **more: Any) -> Batch:
    """A batch of numbered rows."""
    count = len(rows[0])
    return Batch(
        table=schema,
        rows=pa.RecordBatch.from_arrays(rows, schema=schema.arrow),
        op=pa.array(np.broadcast_to(np.asarray(op, np.uint8), count)),
        position=pa.array(np.full(count, 500, np.int64)),
        ordinal=more.pop("ordinal", pa.array(np.arange(first, first + count))),
        xid=pa.array(np.full(count, 7, np.int64)),
        committed_at=pa.array(np.zeros(count, np.int64), pa.timestamp("us", "UTC")),
        unchanged=more.pop("unchanged", (None,) * len(schema.columns)),
        image=more.pop("image", pa.array(np.zeros(count, np.uint8))),
        before=more.pop("before", None),
    )


def wide(first: int, count: int) -> Batch:
    """Inserted rows of about 130 bytes."""
    n = np.arange(first, first + count)
    texts = pa.array(n).cast(pa.string())
    uuids = pa.compute.binary_join_element_wise("00000000-0000-4000-8000-", pa.compute.utf8_lpad(texts, 12, "0"), "")
    cents = pa.array(n).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2))
    padded = pa.compute.utf8_lpad(texts, 60, "x")
    columns = [
        pa.array(n),
        pa.array(n.astype(np.int32)),
        padded,
        cents,
        pa.array(n * 1.5),
        pa.array(n, pa.timestamp("us", "UTC")),
    ]
    return some(WIDE, [*columns, pa.array(n % 2 == 0), uuids], Op.INSERT, first)


def deliver(home: Path, rows: int) -> None:
    """One epoch of that many rows; prints the process's greatest memory in MB."""
    import resource

    harness = Harness("duckdb", home)
    harness.destination.prepare([WIDE])
    epoch = harness.epoch(1)
    batches = (wide(first, 50_000) for first in range(1, rows, 50_000))
    harness.destination.commit(epoch, [harness.writer().write(epoch, 0, batches)])
    harness.close()
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10))


@pytest.mark.slow
def test_a_transaction_of_three_million_rows_stays_below_its_memory(tmp_path: Path) -> None:
    code = f"from tests.destinations.duckdb import test_size as t; t.deliver(t.Path({str(tmp_path)!r}), 3_000_000)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Lane and driver in one process here; each alone may have 1.5 GB.
    assert int(done.stdout) < 1500
    with duckdb.connect(str(tmp_path / "target.duckdb"), read_only=True) as connection:
        found = connection.execute("SELECT count(*), count(DISTINCT id), sum(a), count(DISTINCT g) FROM public.orders").fetchone()
    assert found == (3_000_000, 3_000_000, 3_000_000 * 3_000_001 // 2, 3_000_000)


def moved(first: int, count: int, by: int, odd: bool | None) -> Iterator[Batch]:
    """A key change of every row from `first` on; `odd` keeps the halves whose key is odd, or even."""
    old = np.repeat(np.arange(first, first + count), 2)
    op = np.tile(np.array([Op.LEAVE, Op.ENTER], np.uint8), count)
    key = np.where(op == Op.LEAVE, old, old + by)
    keep = np.ones(len(key), np.bool_) if odd is None else key % 2 == odd
    old, op, key, ordinal = old[keep], op[keep], key[keep], (np.repeat(np.arange(count), 2) + first)[keep]
    nulls = pa.nulls(len(key), pa.string())
    enter = op == Op.ENTER
    before = [pa.array(old, mask=~enter), pa.nulls(len(key), pa.int32()), nulls]
    yield some(
        BIG,
        [pa.array(key), pa.array(np.where(enter, -key, 0).astype(np.int32), mask=~enter), nulls],
        op,
        first,
        ordinal=pa.array(ordinal),
        unchanged=(None, None, pa.array(enter)),
        image=pa.array(np.full(len(key), Image.KEY, np.uint8)),
        before=pa.RecordBatch.from_arrays(before, schema=BIG.arrow),
    )


@pytest.mark.slow
@pytest.mark.parametrize("buckets", [1, 2])
def test_many_rows_change_their_key_and_keep_their_values(tmp_path: Path, buckets: int) -> None:
    rows, harness = 60_000, Harness("duckdb", tmp_path)
    harness.destination.prepare([BIG])
    n = np.arange(rows)
    text = pa.compute.binary_join_element_wise("value of ", pa.array(n).cast(pa.string()), "")
    first, second = harness.epoch(1), harness.epoch(2, buckets=buckets)
    inserted = some(BIG, [pa.array(n), pa.array(n.astype(np.int32)), text], Op.INSERT, 1)
    harness.destination.commit(first, [harness.writer().write(first, 0, iter([inserted]))])
    # By an odd number, so that with two buckets every row crosses.
    halves = [None] if buckets == 1 else [False, True]
    receipts = [harness.writer().write(second, b, moved(0, rows, 100_001, odd)) for b, odd in enumerate(halves)]
    harness.destination.commit(second, receipts)
    harness.close()
    with duckdb.connect(str(tmp_path / "target.duckdb"), read_only=True) as connection:
        sql = "SELECT count(*), min(id), bool_and(v = -id), bool_and(big = 'value of ' || (id - 100001)) FROM public.orders"
        assert connection.execute(sql).fetchone() == (rows, 100_001, True, True)
