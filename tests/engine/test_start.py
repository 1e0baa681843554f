"""What a worker's start does not wait for."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
import penstock.cli.app, penstock.engine.worker
from penstock.core import connectors
for kind in ("source", "destination"):
    for card in connectors.cards(kind).values():
        card.load(kind)
print(*sorted({"alembic", "numba", "pandas"} & sys.modules.keys()))
"""


def test_a_worker_s_own_process_loads_neither_a_compiler_nor_migrations() -> None:
    """A second of CPU at every start; lanes and capture compile, and a ledger that is current has nothing to migrate."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("\n", "")
