"""The guard: a process between us and a server, which ends the server when we are gone, however we went.

It is run as a script, `python -I -S guard.py '<json>'`, and imports only the standard library, because it must start fast.
PR_SET_PDEATHSIG alone would not do: it fires when the *thread* that started the child ends, and a change of user clears it.
So the guard watches for its parent, and the server is tied to the guard's only forking thread after its user was changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def start_guarded(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: str | None = None,
    user: int | None = None,
    group: int | None = None,
    signals: Sequence[int] = (signal.SIGTERM,),
    grace: float = 5.0,
    remove: Sequence[Path] = (),
) -> tuple[subprocess.Popen[bytes], int]:
    """Run `command` under guard; the guard, which ends with the server's exit code, and the server's process id.

    Closing the guard's stdin, or our death, ends the server with `signals`, `grace` seconds apart, at last with SIGKILL;
    then the directories `remove` go too. Both are out of reach of the terminal's Ctrl-C.
    """
    order = {
        "command": list(command),
        "log": str(log),
        "user": user,
        "group": group,
        "signals": [int(number) for number in signals],
        "grace": grace,
        "remove": [str(path) for path in remove],
    }
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.abspath(__file__), json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=env,
        cwd=cwd,
    )
    assert guard.stdout is not None
    with guard.stdout:
        return guard, int(guard.stdout.readline() or 0)


def main() -> None:
    """Start the server, say its process id, and wait: for its end, or for the end of whoever asked."""
    parent = os.getppid()
    order: dict[str, Any] = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None)
    dying = order["signals"][-1]
    rights: dict[str, Any] = {}
    if order["user"] is not None:
        rights = {"user": order["user"], "group": order["group"], "extra_groups": []}
    with open(order["log"], "ab") as log:
        server = subprocess.Popen(
            order["command"],
            # Held open and never written: Spark's gateway ends when its stdin does.
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            # Runs after the change of user, which would clear it.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, dying),
            **rights,
        )
    os.write(1, f"{server.pid}\n".encode())
    os.close(1)
    threading.Thread(target=_watch, args=(server, parent, order), daemon=True).start()
    code = server.wait()
    _sweep()
    if _is_lost(parent):
        for path in order["remove"]:
            shutil.rmtree(path, ignore_errors=True)
    os._exit(code if code >= 0 else 128 - code)


def _watch(server: subprocess.Popen[bytes], parent: int, order: dict[str, Any]) -> None:
    # The pipe tells at once; a forked child of our parent may hold it open, therefore the look at the parent as well.
    while not _is_lost(parent, 0.5):
        pass
    for number in (*order["signals"], signal.SIGKILL):
        server.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(order["grace"])
            return


def _is_lost(parent: int, seconds: float = 0) -> bool:
    return bool(select.select([0], [], [], seconds)[0]) or os.getppid() != parent


def _sweep() -> None:
    """End what the server left behind: everything of this session, which start_guarded made ours alone."""
    if os.getsid(0) != os.getpid():
        return
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry)) == os.getpid():
                    os.kill(int(entry), signal.SIGKILL)


if __name__ == "__main__":
    main()
