"""Named failpoints: boundaries at which a test can kill or hold a process.

`PENSTOCK_FAILPOINT=name[:count][,name…]` makes the process kill itself with SIGKILL the count-th time it reaches the name
(default the first). With `PENSTOCK_FAILPOINT_ONCE=directory` that happens once for all processes which share the directory: who
comes second finds the mark of the first. Nothing happens, at the cost of one comparison, when the variable is not set.
"""

from __future__ import annotations

import os
import signal

NAMES = (
    "capture.before_journal_write",
    "capture.after_journal_write",
    "capture.after_journal_sync",
    "capture.after_index_write",
    "capture.before_confirm",
    "capture.after_confirm",
    "engine.before_plan",
    "engine.after_plan",
    "engine.after_prepare",
    "engine.after_dispatch",
    "engine.before_commit",
    "engine.after_commit",
    "engine.after_checkpoint",
    "lane.before_write",
    "lane.after_write",
    "lane.before_send",
    "lane.in_send",
    "lane.after_send",
    "destination.before_publish",
    "destination.in_publish",
    "destination.after_publish",
)

_armed: dict[str, int] = {}


def arm(setting: str) -> None:
    """Arms the failpoints of a `PENSTOCK_FAILPOINT` setting; an unknown name is an error: no test may pass by a typing slip."""
    _armed.clear()
    for part in filter(None, setting.split(",")):
        name, _, count = part.partition(":")
        if name not in NAMES:
            raise ValueError(f"unknown failpoint {name!r}")
        _armed[name] = int(count or 1)


def reach(name: str) -> None:
    """Marks a boundary; kills the process when the failpoint is armed and its count is used up."""
    if not _armed:
        return
    left = _armed.get(name)
    if left is None:
        return
    if left <= 1:
        if _is_first(name):
            os.kill(os.getpid(), signal.SIGKILL)
        return
    _armed[name] = left - 1


def _is_first(name: str) -> bool:
    directory = os.environ.get("PENSTOCK_FAILPOINT_ONCE")
    if directory is None:
        return True
    try:
        os.close(os.open(os.path.join(directory, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


arm(os.environ.get("PENSTOCK_FAILPOINT", ""))
