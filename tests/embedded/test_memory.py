"""Memory that is given back: the process is smaller, and works as before."""

from __future__ import annotations

import subprocess
import sys

GIVE_BACK = """
import re
import duckdb
from penstock.embedded.memory import give_back

def work():
    return duckdb.sql("select sum(range) from range(100000)").fetchall()

def resident():
    found = re.search(r"^Rss: +(\\d+) kB", open("/proc/self/smaps_rollup").read(), re.M)
    return int(found[1]) >> 10

first, before = work(), resident()
give_back()
after = resident()
assert work() == first
print(before - after)
"""


def test_code_that_was_given_back_runs_again() -> None:
    # In a process of its own: what this one has mapped depends on the tests before.
    done = subprocess.run([sys.executable, "-c", GIVE_BACK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
