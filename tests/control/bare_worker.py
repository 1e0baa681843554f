"""A worker without an engine: it takes the flow's lease, follows the wish and writes under a lock that shows who else does.

It is a process like any other worker, with penstock's own lease and ledger, and starts in a second. What it writes is a line
with its generation. Labels of the flow say what it does besides: how many seconds it `lasts` when it runs once and `lingers` when
it is stopped, how many it `reloads`, and whether it `refuses` that; by which error's code its first run `fails`; and how a run
`ends` by itself, whatever was asked.
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
from penstock.engine.ending import DRAINED
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
    if (code := _labels(ledger, flow).get("fails")) is not None and not (state / f"{flow}.failed").exists():
        (state / f"{flow}.failed").touch()
        ledger.lifecycle.record(flow, generation, "failed", f"{code}: KeyError → Look.", who, "failed")
        lease.give_up()
        ledger.close()
        return 1
    why: str | None = None
    paused, reloads, began, stopped_at = False, ledger.lifecycle.wish(flow).reloads, time.monotonic(), 0.0
    with (state / f"{flow}.lock").open("a") as lock, (state / f"{flow}.written").open("a") as written:
        while not asked.is_set():
            wished, labels = ledger.lifecycle.wish(flow), _labels(ledger, flow)
            wish = wished.state
            stopped_at = stopped_at or (time.monotonic() if wish == "stopped" else 0.0)
            if stopped_at and time.monotonic() - stopped_at >= float(labels.get("lingers", 0)):
                break
            if (once or "ends" in labels) and time.monotonic() - began > float(labels.get("lasts", 0.3)):
                why = labels.get("ends", DRAINED)
                break
            if wished.reloads != reloads:
                reloads = wished.reloads
                (state / f"{flow}.reloading").touch()
                time.sleep(float(labels.get("reloads", 0)))
                answer = ("reload refused", "it does not") if "refuses" in labels else ("reloaded", "all of it")
                ledger.lifecycle.record(flow, generation, *answer, who, answers=reloads)
            if stopped_at:
                time.sleep(LOOK)
                continue
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
    ledger.lifecycle.record(flow, generation, "stopped", why, who, "stopped")
    lease.give_up()
    ledger.close()
    return 0


def _labels(ledger: Ledger, flow: str) -> dict[str, str]:
    found = ledger.definitions.find(flow)
    return dict(found.definition.get("labels", {})) if found is not None else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "once"))
