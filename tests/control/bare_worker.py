"""A worker without an engine: it takes the flow's lease, follows the wish and writes under a lock that shows who else does.

It is a process like any other worker, with penstock's own lease and ledger, and starts in a second. What it writes is a line
with its generation.
"""

from __future__ import annotations

import fcntl
import json
import signal
import sys
import threading
import time
from pathlib import Path

from penstock.engine import lease as leasing
from penstock.engine.places import ledger_address
from penstock.errors import FlowRunning
from penstock.ledger.ledger import Ledger
from tests.control.definitions import definition

LOOK = 0.05


def main(flow: str, state: Path, once: bool) -> int:
    """Runs the flow until it is to stop."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    address = ledger_address(state)
    ledger = Ledger(address)
    if ledger.lifecycle.wish(flow).state == "stopped":
        return 1
    try:
        lease = leasing.take(address, flow, "worker")
    except FlowRunning:
        return 1
    assert lease is not None
    who, generation = f"bare {lease.generation}", lease.generation
    ledger.take_over(flow, "5ec0ffee", json.dumps(definition(flow)), generation)
    ledger.lifecycle.record(flow, generation, "started", None, who, "running")
    paused, ends = False, time.monotonic() + 0.3
    with (state / f"{flow}.lock").open("a") as lock, (state / f"{flow}.written").open("a") as written:
        while not asked.is_set():
            wish = ledger.lifecycle.wish(flow).state
            if wish == "stopped" or (once and time.monotonic() > ends):
                break
            if (wish == "paused") != paused:
                paused = wish == "paused"
                state_now = "paused" if paused else "running"
                ledger.lifecycle.record(flow, generation, state_now, None, who, state_now)
            if not paused and lease.valid():
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    written.write(f"{generation} beside another\n")
                    return 2
                written.write(f"{generation}\n")
                written.flush()
                time.sleep(LOOK)
                fcntl.flock(lock, fcntl.LOCK_UN)
            else:
                time.sleep(LOOK)
    ledger.lifecycle.record(flow, generation, "stopped", None, who, "stopped")
    lease.give_up()
    ledger.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "once"))
