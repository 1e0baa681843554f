"""What the file system says, as destinations pass it on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.destinations.filesystem import probe


def test_flows_of_one_process_try_a_directory_side_by_side(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: probe(tmp_path), range(400)))
    assert not list(tmp_path.iterdir())
