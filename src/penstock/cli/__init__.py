"""The `penstock` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    from penstock.embedded.memory import loading

    with loading():
        from penstock.cli.app import run

    sys.exit(run(sys.argv[1:]))
