"""The Spark session: it starts, it comes back after its JVM was killed, and it leaves nothing behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from penstock.embedded.java import find_java
from penstock.engine.archive import ClassArchive
from penstock.engine.home import spark_home
from penstock.engine.session import SparkHost
from penstock.errors import SparkFailed
from tests.processes import is_gone, wait_until

OWNER = """
import os, sys
from pathlib import Path
from penstock.embedded.java import find_java
from penstock.engine.archive import ClassArchive
from penstock.engine.home import spark_home
from penstock.engine.session import SparkHost
host = SparkHost(Path(sys.argv[1]))
workers = host.context().parallelize(range(2), 2).map(lambda i: os.getpid()).collect()
print(host.process_id, *workers, flush=True)
sys.stdin.readline()
host.stop()
"""


def worker_ids(host: SparkHost, tasks: int = 2) -> set[int]:
    return set(host.context().parallelize(range(tasks), tasks).map(lambda _: os.getpid()).collect())


@pytest.mark.slow
def test_workers_run_our_daemon_in_our_python(spark: SparkHost) -> None:
    def look(_: int) -> tuple[str, str, int]:
        import gc

        parent = psutil.Process(os.getpid()).parent()
        return sys.executable, " ".join(parent.cmdline()) if parent else "", gc.get_freeze_count()

    [(python, daemon, frozen)] = spark.context().parallelize([0], 1).map(look).collect()
    assert python == sys.executable
    # A fork of the cradle, or by itself where that has ended because nobody needed it for long.
    assert "penstock.engine.cradle" in daemon or "penstock.engine.daemon" in daemon
    assert frozen > 1000


@pytest.mark.slow
def test_dataframes_are_in_utc(spark: SparkHost) -> None:
    [row] = spark.session().sql("SELECT timestamp '2026-07-01 12:00:00 UTC' AS t, current_timezone() AS zone").collect()
    assert row.zone == "UTC"


@pytest.mark.slow
def test_a_killed_worker_is_replaced_by_spark(spark: SparkHost, tmp_path: Path) -> None:
    mark = str(tmp_path / "killed")

    def die_once(i: int) -> int:
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return i

    assert spark.context().parallelize([7], 1).map(die_once).collect() == [7]


@pytest.mark.slow
def test_ctrl_c_stays_what_it_was(spark: SparkHost) -> None:
    before = signal.getsignal(signal.SIGINT)
    spark.context()
    assert signal.getsignal(signal.SIGINT) is before
    assert os.getpgid(spark.process_id) != os.getpgid(0)


@pytest.mark.slow
def test_killed_jvm_is_noticed_and_started_again(spark: SparkHost, capfd: pytest.CaptureFixture[str]) -> None:
    workers = worker_ids(spark)
    failures: list[BaseException] = []

    def wait_for_ever() -> None:
        try:
            spark.context().parallelize([0], 1).map(lambda _: time.sleep(600)).collect()
        except Exception as error:
            failures.append(error)

    job = threading.Thread(target=wait_for_ever)
    job.start()
    first = spark.process_id
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not spark.alive())
    job.join(30)
    assert failures, "the job that was running has to fail, not to hang"
    again = worker_ids(spark)
    assert spark.process_id != first
    wait_until(lambda: all(is_gone(worker) for worker in workers))
    assert again.isdisjoint(workers)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_call_that_meets_a_dead_jvm_says_nothing_by_itself(spark: SparkHost, caplog: pytest.LogCaptureFixture) -> None:
    context = spark.context()
    gateway = context._gateway
    assert gateway is not None
    os.kill(spark.process_id, signal.SIGKILL)
    wait_until(lambda: not spark.alive())
    with caplog.at_level(logging.INFO), pytest.raises(Exception, match=r"."):
        gateway.jvm.java.lang.System.nanoTime()
    assert [record for record in caplog.records if record.module == "java_gateway"] == []
    assert spark.context() is not context


def test_second_session_in_a_process_is_refused(spark: SparkHost, tmp_path: Path) -> None:
    spark.context()
    with pytest.raises(SparkFailed, match="another Spark session"):
        SparkHost(tmp_path).context()
    assert spark.alive()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stop", "SIGKILL", "SIGTERM"])
def test_nothing_outlives_its_owner_or_reaches_the_terminal(tmp_path: Path, way: str) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    family = [int(word) for word in owner.stdout.readline().split()]
    assert len(family) >= 2
    descendants = [child.pid for child in psutil.Process(owner.pid).children(recursive=True)]
    if way != "stop":
        owner.send_signal(signal.Signals[way])
    out, err = owner.communicate("\n", timeout=60)
    assert (out, err) == ("", "")
    if way == "stop":
        assert all(is_gone(process) for process in (*family, *descendants))
        assert not (tmp_path / "spark").exists()
    wait_until(lambda: all(is_gone(process) for process in (*family, *descendants)))


@pytest.mark.slow
def test_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    archive = ClassArchive(find_java(), spark_home()).path
    recorded = archive.exists()
    script = (
        "import sys; from pathlib import Path; from penstock.engine.session import SparkHost; import os\n"
        "host = SparkHost(Path(sys.argv[1]), conf={'spark.driver.extraJavaOptions': '-agentlib:nosuchagent'})\n"
        "from penstock.errors import SparkFailed\n"
        "try: host.context()\n"
        "except SparkFailed as error: print(error.message)\n"
        "assert not host.alive() and host.process_id == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert "nosuchagent" in done.stdout, done.stderr
    assert done.stderr == ""
    # It is every flow's on the machine, and starts take three times as long without it.
    assert archive.exists() == recorded
