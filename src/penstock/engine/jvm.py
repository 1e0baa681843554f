"""Spark's JVM as a process of ours: started under guard, found over py4j, ended for sure."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.embedded.guard import start_guarded
from penstock.embedded.java import JavaHome
from penstock.errors import SparkFailed

_LOG_LIMIT = 16 << 20
OPTIONS = ("-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError")
"""What every JVM of ours runs with."""
# The JVM has little to do: compiling less eagerly, small jobs take 34 ms instead of 44, and 30 MB less.
# And it needs little memory: Java's own first heap, a 64th of the machine's, is filled before it is ever cleaned
# (270 MB with 24 GB, 180 MB so).
# What is free after a collection is given back: `SparkHost.tidy` has one made once everything stands.
SMALL = ("-XX:TieredStopAtLevel=1", "-Xms32m", "-Xmn8m", "-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=30")
"""What one on this machine, without executors of its own, runs with besides."""


class Jvm:
    """One run of Spark's JVM with what belongs to it; its Python workers are of its session and end with it."""

    def __init__(self, java: JavaHome, home: Path, log: Path) -> None:
        self._java, self._home, self._log = java, home, log
        # Unix sockets are made here, and their paths may have 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="ps-", dir="/tmp" if os.path.isdir("/tmp") else None))
        self.process_id = 0
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, properties: Mapping[str, str], environment: Mapping[str, str], *, signals: Sequence[int]) -> Any:
        """Launch with Spark's `properties` and wait for the gateway; py4j's end of it. `signals` are what ends it later."""
        env = {**environment, "SPARK_HOME": str(self._home), "JAVA_HOME": str(self._java.path)}
        env.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")
        answer = self.directory / "gateway"
        env["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(answer)
        # Through a file, because everybody can read command lines and some properties are secrets.
        file = self.directory / "spark.properties"
        file.touch(mode=0o600)
        file.write_text("".join(f"{name}={_escape(value)}\n" for name, value in properties.items()))
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if self._log.exists() and self._log.stat().st_size > _LOG_LIMIT:
            self._log.rename(self._log.with_suffix(".log.1"))
        position = self._log.stat().st_size if self._log.exists() else 0
        command = [f"{self._home}/bin/spark-submit", "--load-spark-defaults", "--properties-file", str(file), "pyspark-shell"]
        # The script replaces itself by the JVM, so the process that is guarded is the JVM.
        self._guard, self.process_id = start_guarded(
            command, log=self._log, env=env, signals=signals, grace=60.0, remove=[self.directory]
        )
        self._wait_for(answer, position)
        data = answer.read_bytes()
        (port, length) = struct.unpack(">ii", data[:8])
        return _connect(port, data[8 : 8 + length].decode())

    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._guard is not None and self._guard.poll() is None

    def end(self) -> None:
        """End the JVM and everything it started, and remove its directory; done when it returns."""
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _wait_for(self, answer: Path, position: int, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.is_alive():
            if answer.exists():
                return
            time.sleep(0.01)
        self.end()
        with self._log.open("rb") as log:
            log.seek(position)
            tail = log.read()[-2000:].decode(errors="replace").strip()
        raise SparkFailed(f"Spark's JVM did not start: {tail or 'it wrote nothing to its log'}")


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _connect(port: int, secret: str) -> Any:
    from pyspark.java_gateway import launch_gateway

    # pyspark attaches to a running gateway that the environment names; so this stays right when pyspark changes.
    names = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(names)
    try:
        return launch_gateway()
    finally:
        for name in names:
            os.environ.pop(name, None)
