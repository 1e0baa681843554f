"""The Spark session: one per process, started on demand, started again after its JVM died, gone when it is stopped."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shlex
import shutil
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import penstock
from penstock.embedded import memory
from penstock.embedded.cache import kernel_directory
from penstock.embedded.java import find_java
from penstock.engine.archive import ClassArchive
from penstock.engine.daemon import CRADLE
from penstock.engine.home import LOGGING, spark_home
from penstock.engine.jvm import OPTIONS, SMALL, Jvm
from penstock.engine.nursery import shared
from penstock.engine.properties import MASTER, conf_of, local_master
from penstock.errors import SparkFailed

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOCAL_TASKS = 64
"""Tasks that may stand side by side in local mode; lanes wait more than they work, so there may be many more than cores."""
LOCAL_ATTEMPTS = 1000
"""How often Spark starts a lost lane again before its job fails."""


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


class SparkHost:
    """Spark as this process has it; there can be one at a time, because pyspark keeps its state in its modules."""

    def __init__(
        self, state: Path, master: str | None = None, conf: Mapping[str, str] | None = None, *, recording: bool = False
    ) -> None:
        """`state` takes Spark's log and scratch files; `conf` overrides every setting of ours, and those of the environment.

        `recording` makes this run write the class archive for later ones; it starts and stops slowly. SparkMasterRefused for a
        master that is not this machine.
        """
        self.log_path = state / "logs/spark.log"
        self._scratch = state / "spark" / str(os.getpid())
        self._conf = {**conf_of(os.environ), **(conf or {})}
        self.master = local_master(master or os.environ.get(MASTER) or f"local[{LOCAL_TASKS},{LOCAL_ATTEMPTS}]", self._conf)
        self._recording = recording
        self._lock = threading.RLock()
        self._jvm: Jvm | None = None
        self._archive: ClassArchive | None = None
        self._context: SparkContext | None = None
        self._session: SparkSession | None = None
        self._owner = os.getpid()

    @property
    def process_id(self) -> int:
        """The JVM's process, 0 when there is none."""
        return self._jvm.process_id if self._jvm is not None else 0

    def context(self) -> SparkContext:
        """What jobs and lanes need; the first call starts Spark, and so does the first after `stop` or the JVM's death."""
        with self._lock:
            if self._context is None or not self.alive():
                self.stop()
                self._context = self._start()
            return self._context

    def session(self) -> SparkSession:
        """What DataFrames need besides; made on the first call, which takes a second more."""
        from pyspark.sql import SparkSession

        with self._lock:
            context = self.context()
            if self._session is None:
                self._session = SparkSession(context)
            return self._session

    def alive(self) -> bool:
        """Whether the JVM's process is there."""
        return self._jvm is not None and self._jvm.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether Spark takes jobs now; asks without waiting for a start that is under way."""
        return self._context is not None and self.alive()

    def tidy(self) -> None:
        """Has the JVM give back what starting has left; a pause of some tens of milliseconds that no lane takes part in."""
        context = self._context
        if context is not None and self.alive() and self._is_local():
            with contextlib.suppress(Exception):
                context._jvm.java.lang.System.gc()

    def restart(self) -> SparkContext:
        """End what is left of the JVM and its workers, and start anew."""
        with self._lock:
            self.stop()
            return self.context()

    def stop(self) -> None:
        """End the JVM and all Python workers and remove their scratch files; harmless when nothing runs."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._jvm is None:
                return
            atexit.unregister(self.stop)
            # A cluster must be told that the application is over; a local JVM can simply end.
            if self._context is not None and self.alive() and not self._is_local():
                _stop_quietly(self._context)
            _forget_pyspark_state()
            self._jvm.end()
            if self._recording and self._archive is not None:
                self._archive.publish()
            shutil.rmtree(self._scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._scratch.parent.rmdir()
            self._jvm = self._archive = self._context = self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _remove_leftovers(self) -> None:
        """What runs that were killed have left; the files of one that only stands still are its own."""
        for path in self._scratch.parent.glob("*"):
            if path == self._scratch or not Path(f"/proc/{path.name}").exists():
                shutil.rmtree(path, ignore_errors=True)

    def _start(self) -> SparkContext:
        from pyspark import SparkConf, SparkContext

        if SparkContext._active_spark_context is not None:
            raise SparkFailed("this process has another Spark session", remedy="Stop the other session first.")
        # A dead JVM is our business to notice and to report; py4j would log each call that meets it, some of them as root.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_py4j)
        java, home = find_java(), spark_home()
        self._archive = ClassArchive(java, home)
        options = self._archive.recording_options() if self._recording else self._archive.options()
        self._jvm = jvm = Jvm(java, home, self.log_path)
        atexit.register(self.stop)
        self._remove_leftovers()
        self._scratch.mkdir(parents=True)
        try:
            gateway = jvm.start(self._properties(home, jvm.directory, options), self._environment(), signals=self._last_signals())
            with _sigint_kept():
                context = SparkContext(conf=SparkConf(_jvm=gateway.jvm), gateway=gateway)
            context.pythonExec = self._python()
            # The thread that takes accumulator updates prints a traceback when the JVM hangs up, as it always does.
            context._accumulatorServer.handle_error = lambda request, address: None
            return context
        except SparkFailed as error:
            archive = self._archive
            self.stop()
            if archive is None or self._recording or not options or not archive.is_blamed(error.message):
                raise
            # Java 17 from the wheel ends when a class archive is damaged, instead of going on without it.
            archive.discard()
            return self._start()
        except Exception as error:
            self.stop()
            raise SparkFailed(f"Spark did not start: {str(error)[:1000]}") from error

    def _last_signals(self) -> tuple[int, ...]:
        # A local JVM has nothing to tell anybody and takes a second to end in order; a recording one must do so.
        if self._recording or not self._is_local():
            return (signal.SIGTERM,)
        return (signal.SIGKILL,)

    def _is_local(self) -> bool:
        return self.master.startswith("local")

    def _properties(self, home: Path, directory: Path, options: list[str]) -> dict[str, str]:
        cores = str(os.cpu_count() or 2)
        properties = {
            "spark.master": self.master,
            "spark.app.name": "penstock",
            "spark.log.level": "ERROR",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.ui.retainedJobs": "50",
            "spark.ui.retainedStages": "50",
            "spark.ui.retainedTasks": "1000",
            "spark.sql.ui.retainedExecutions": "20",
            # One destination's backfill must not keep another's lane from a free slot.
            "spark.scheduler.mode": "FAIR",
            # A lane that was started twice would do the same work twice.
            "spark.speculation": "false",
            "spark.python.daemon.module": "penstock.engine.daemon",
            "spark.python.worker.reuse": "true",
            # Nagle's algorithm and delayed acknowledgements cost 40 ms a task on the TCP sockets that are the default.
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.python.unix.domain.socket.dir": str(directory),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
            "spark.local.dir": str(self._scratch),
        }
        if self._is_local():
            # The default follows the 64 slots; shuffles want the cores.
            properties |= {"spark.default.parallelism": cores, "spark.sql.shuffle.partitions": cores}
            properties |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            properties |= {"spark.driver.memory": "512m"}
            # Else as many as there are slots, each with a stack.
            properties |= {"spark.rpc.netty.dispatcher.numThreads": "2"}
            options = [*SMALL, *options]
        properties |= self._conf
        java = [*OPTIONS, f"-Djava.io.tmpdir={directory}", *options]
        if (home / LOGGING).exists():
            java.append(f"-Dlog4j2.configurationFile=file:{home / LOGGING}")
        given = self._conf.get("spark.driver.extraJavaOptions", "")
        properties["spark.driver.extraJavaOptions"] = f"{shlex.join(java)} {given}".strip()
        return properties

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        own = Path(penstock.__file__).resolve().parents[1]
        paths = [path for path in (environment.get("PYTHONPATH"),) if path]
        if own != Path(sysconfig.get_path("purelib")).resolve():
            paths.insert(0, str(own))
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        environment["PYSPARK_PYTHON"] = self._python()
        environment.setdefault("NUMBA_CACHE_DIR", str(kernel_directory()))
        # A lane has one core's worth of work; pools of threads in every worker would only fight.
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment = {**memory.SETTINGS, **environment}
        if self._is_local():
            environment[CRADLE] = shared.address()
        return environment

    def _python(self) -> str:
        return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _stop_quietly(context: SparkContext, seconds: float = 10) -> None:
    def stop() -> None:
        with contextlib.suppress(Exception):
            context.stop()

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    thread.join(seconds)


@contextlib.contextmanager
def _sigint_kept() -> Iterator[None]:
    # pyspark puts a handler of its own on SIGINT, which cancels all jobs; stopping is the worker's decision.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_accumulators(server: Any) -> None:
    # Its socket lies in the JVM's directory, which may be removed between its look and its own removal.
    with contextlib.suppress(FileNotFoundError):
        server.shutdown()


def _forget_pyspark_state() -> None:
    """Make pyspark believe that it has never had a JVM in this process."""
    from pyspark import SparkContext, SparkFiles
    from pyspark.sql import SparkSession, SQLContext

    context: Any = SparkContext._active_spark_context
    gateway: Any = SparkContext._gateway
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
    SparkFiles._sc = None
    if context is not None and getattr(context, "_accumulatorServer", None) is not None:
        # It looks twice a second whether it should end: nothing to wait for.
        threading.Thread(target=_end_accumulators, args=(context._accumulatorServer,), daemon=True).start()
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.close()
