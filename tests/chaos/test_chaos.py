"""Everything is killed, at every boundary and at random, under load; afterwards every destination is as the source says.

`PENSTOCK_CHAOS_MINUTES` says how long, `PENSTOCK_TEST_SEED` what happens.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from tests.chaos.site import Site, steady_load
from tests.conftest import Database

MINUTES = float(os.environ.get("PENSTOCK_CHAOS_MINUTES", "5"))
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 30)))
VICTIMS = ("worker", "worker", "jvm", "lane", "lane", "lanes", "capture", "source", "target", "hook")


@pytest.fixture
def site(tmp_path: Path, penstock_home: Path) -> Iterator[Site]:
    settings = {"fsync": "off", "max_connections": "100"}
    with EmbeddedPostgres(settings=settings) as source, EmbeddedPostgres(settings=settings) as target:
        made = Site(tmp_path, Database(source, "postgres"), Database(target, "postgres"))
        try:
            yield made
        finally:
            made.close()


@pytest.mark.chaos
@pytest.mark.timeout(int(MINUTES * 60) + 1200)
def test_whatever_is_killed_nothing_is_lost_or_twice_or_confirmed_early(site: Site) -> None:
    say(f"PENSTOCK_TEST_SEED={SEED}, {MINUTES:g} minutes")
    chance = random.Random(SEED)
    site.start_worker(chance)
    end = time.monotonic() + MINUTES * 60
    with steady_load(site.flow.database, SEED) as commits:
        said = time.monotonic()
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.5, 12))
            site.assert_nothing_confirmed_early()
            site.strike(chance.choice(VICTIMS), chance)
            site.look_after(chance)
            if time.monotonic() - said > 60:
                said = time.monotonic()
                say(f"{commits[0]} commits, {site.kills.total()} kills, checkpoints {site.flow.checkpoints()}")
    site.flow.kill()
    assert commits[0] > 100, "there was hardly any load"
    site.flow.run_out(600)
    site.assert_nothing_confirmed_early()
    compared = site.assert_everything_is_right()
    say(f"{commits[0]} commits; killed {dict(sorted(site.kills.items()))}; compared {compared}: nothing missing, nothing twice")


def say(line: str) -> None:
    """A line of the report, at once."""
    sys.__stdout__.write(f"chaos: {line}\n") if sys.__stdout__ is not None else None
    if sys.__stdout__ is not None:
        sys.__stdout__.flush()
