"""The class archive: recorded once, used afterwards, and never a reason not to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.embedded.java import find_java
from penstock.engine.archive import ClassArchive
from penstock.engine.home import spark_home

START = """
import sys
from pathlib import Path
from penstock.engine.session import SparkHost
with SparkHost(Path(sys.argv[1])) as host:
    print(host.context().parallelize([1], 1).count())
"""


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """The archive of a cache in which nothing is recorded yet."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return ClassArchive(find_java(), spark_home())


def start(state: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", START, str(state)], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_archive_that_does_not_fit_is_passed_over(archive: ClassArchive, tmp_path: Path) -> None:
    assert archive.options() == []
    archive.path.write_bytes(b"not an archive" * 1000)
    done = start(tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


def test_archive_recorded_with_other_options_is_used_but_not_current(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive._draft.write_bytes(b"whole")
    archive.publish()
    assert archive.is_current()
    monkeypatch.setattr("penstock.engine.archive.SMALL", ("-XX:SomethingElse",))
    assert not archive.is_current()
    assert archive.options()
    archive.discard()
    assert not archive.is_current()


@pytest.mark.slow
def test_prepare_records_an_archive_that_the_next_start_maps(tmp_path: Path) -> None:
    # In the user's cache, where `make setup` has recorded it: that takes a minute of CPU, and is done once for a machine.
    subprocess.run([sys.executable, "-m", "penstock.engine.prepare"], check=True, timeout=240)
    archive = ClassArchive(find_java(), spark_home())
    assert archive.path.stat().st_size > 50 << 20
    assert not list(archive.path.parent.glob(".*.jsa"))
    look = START + "    print(sys.argv[2] in Path(f'/proc/{host.process_id}/maps').read_text())\n"
    command = [sys.executable, "-c", look, str(tmp_path), str(archive.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "1\nTrue\n", done.stderr
