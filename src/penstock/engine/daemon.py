"""The parent of Spark's Python workers: it loads and warms what lanes need once, and every fork of it starts warm.

Spark runs it as `spark.python.daemon.module`, once per executor.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyspark.daemon


def main() -> None:
    """Warm up, then serve Spark until it closes our stdin."""
    # Workers import this after the fork otherwise, 0.2 s each.
    importlib.import_module("pyspark.worker")
    if importlib.util.find_spec("penstock.engine.lane") is not None:
        lane = importlib.import_module("penstock.engine.lane")
        try:
            lane.warm()
        except Exception:
            # One connector that cannot be warmed is no reason to serve none: its lane will meet the error and report it.
            traceback.print_exc()
    # What is alive now stays so: out of the collector's sight it costs no time, and its pages stay shared after a fork.
    gc.collect()
    gc.freeze()
    # pyspark collects after every task, 10 to 20 ms with our libraries loaded; Python's own schedule is enough.
    pyspark.daemon.gc = SimpleNamespace(collect=lambda: 0)
    pyspark.daemon.worker = _serve_quietly(pyspark.daemon.worker)
    pyspark.daemon.manager()


def _serve_quietly(serve: Callable[..., int]) -> Callable[..., int]:
    def worker(*arguments: Any) -> int:
        try:
            return serve(*arguments)
        except BrokenPipeError:
            # The JVM has hung up on a task it cancelled, or is gone: there is nobody left to tell.
            return 1

    return worker


if __name__ == "__main__":
    main()
