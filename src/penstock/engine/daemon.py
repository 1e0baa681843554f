"""The parent of Spark's Python workers: it loads and warms what lanes need once, and every fork of it starts warm.

Spark runs it as `spark.python.daemon.module`, once per executor. Where the worker's own cradle is at hand, on one machine, the
daemon is forked from that instead, shares what captures have loaded already, and this process only waits for its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

CRADLE = "PENSTOCK_CRADLE"
"""The environment's name for the cradle's address."""
_NAME = 15


def main() -> None:
    """Serve Spark until it closes our stdin, here or in a fork of the cradle."""
    address = os.environ.get(CRADLE)
    code = _serve_there(address) if address else None
    if code is None:
        serve()
    sys.exit(code)


def serve() -> None:
    """Warm up, then serve Spark until it closes our stdin."""
    import gc
    import importlib
    import importlib.util
    import traceback
    from types import SimpleNamespace

    import pyspark.daemon

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
    importlib.import_module("penstock.embedded.memory").give_back()
    # pyspark collects after every task, 10 to 20 ms with our libraries loaded; Python's own schedule is enough.
    pyspark.daemon.gc = SimpleNamespace(collect=lambda: 0)
    pyspark.daemon.worker = _serve_quietly(pyspark.daemon.worker)
    pyspark.daemon.manager()


def _serve_there(address: str) -> int | None:
    """Has the cradle fork a daemon with our files, and waits for its end; its exit code, None when there is no cradle."""
    order = json.dumps({"environment": dict(os.environ), "directory": os.getcwd(), "arguments": sys.argv})
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, contextlib.suppress(OSError):
        line.connect(address)
        # Through a file: an environment may be larger than a message.
        file = os.memfd_create("penstock-order")
        os.write(file, order.encode())
        socket.send_fds(line, [b"daemon"], [0, 1, 2, file])
        os.close(file)
        if line.recv(16):
            # Spark tells the daemon to end by closing its stdin: nobody else may hold an end of the pipes.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            return int(line.recv(16) or 1)
    return None


def _serve_quietly(serve: Callable[..., int]) -> Callable[..., int]:
    def worker(*arguments: Any) -> int:
        ctypes.CDLL(None).prctl(_NAME, b"lane")
        try:
            return serve(*arguments)
        except BrokenPipeError:
            # The JVM has hung up on a task it cancelled, or is gone: there is nobody left to tell.
            return 1

    return worker


if __name__ == "__main__":
    main()
