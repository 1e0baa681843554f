"""Parquet files: every value back, the same bytes for the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batch import Batch
from penstock.formats import parquet
from penstock.formats.layout import table_of, to_layout
from penstock.formats.parquet import ParquetFormat, ParquetOptions
from tests.batches import batch, delete, insert, table, update
from tests.formats.values import EVERY, HARD, assert_identical, rows, whole

TABLE = table({"id": pa.int64(), "v": pa.string()})


def written(path: Path, batches: list[Batch], **options: Any) -> bytes:
    writer = ParquetFormat(ParquetOptions(**options)).open(path, batches[0].table, "src")
    for part in batches:
        writer.write(part)
    writer.close()
    return path.read_bytes()


def assert_comes_back(path: Path, every: Batch) -> None:
    written(path, [every])
    made = to_layout(every, "src")
    back = pa.Table.from_batches(ParquetFormat().read(path), schema=made.schema)
    for field, left, right in zip(made.schema, made.columns, back.columns, strict=True):
        assert_identical(left, pa.concat_arrays([pa.array([], field.type), *right.chunks]), field.name)


@settings(max_examples=50, deadline=None)
@given(st.lists(rows(), max_size=5), st.lists(rows(), max_size=3))
def test_every_value_comes_back(
    tmp_path_factory: pytest.TempPathFactory, new: list[dict[str, Any]], old: list[dict[str, Any]]
) -> None:
    made = [update({"id": n, **row}, ordinal=n) for n, row in enumerate(new)]
    made += [delete({"id": n, **whole(row)}, ordinal=100 + n) for n, row in enumerate(old)]
    assert_comes_back(tmp_path_factory.mktemp("p") / "x.parquet", batch(EVERY, made))


def test_hard_values_come_back(tmp_path: Path) -> None:
    made = [insert({"id": n, **{k: v[n % len(v)] for k, v in HARD.items()}}, ordinal=n) for n in range(1, 300)]
    assert_comes_back(tmp_path / "x.parquet", batch(EVERY, made))
    (back,) = ParquetFormat().read(tmp_path / "x.parquet")
    assert table_of(back.schema) == EVERY


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_same_batches_give_the_same_bytes(tmp_path: Path, compression: str) -> None:
    batches = [batch(TABLE, [insert({"id": n, "v": f"{n}" * 50}, ordinal=n) for n in range(m, 3000, 20)]) for m in range(20)]
    first = written(tmp_path / "a", batches, compression=compression)
    assert first == written(tmp_path / "b", batches, compression=compression)
    found = pq.ParquetFile(tmp_path / "a").metadata.row_group(0).column(3).compression
    assert found == {"zstd": "ZSTD", "snappy": "SNAPPY", "none": "UNCOMPRESSED"}[compression]


def test_small_batches_share_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [batch(TABLE, [insert({"id": n, "v": "x"}, ordinal=n)]) for n in range(1, 20)]
    written(tmp_path / "a", batches)
    assert pq.ParquetFile(tmp_path / "a").num_row_groups == 1
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 1)
    written(tmp_path / "b", batches)
    assert pq.ParquetFile(tmp_path / "b").num_row_groups == 19


def test_huge_values_have_a_file_of_their_own(tmp_path: Path) -> None:
    small, huge = batch(TABLE, [insert({"id": 1, "v": "x"})]), batch(TABLE, [insert({"id": 2, "v": "y" * (9 << 20)})])
    writer = ParquetFormat().open(tmp_path / "a", TABLE, "src")
    writer.write(small)
    assert writer.fits(small) and not writer.fits(huge)
    written(tmp_path / "b", [huge])
    assert not pq.ParquetFile(tmp_path / "b").metadata.row_group(0).column(0).is_stats_set


def test_other_readers_understand_the_file(tmp_path: Path) -> None:
    written(tmp_path / "x.parquet", [batch(TABLE, [update({"id": 1}), delete({"id": 2, "v": "b"}, ordinal=2)])])
    found = duckdb.sql(
        f"SELECT __op, id, v, __unchanged, __before.v FROM '{tmp_path / 'x.parquet'}' ORDER BY __ordinal"
    ).fetchall()
    assert found == [("update", 1, None, ["v"], None), ("delete", 2, "b", [], "b")]
