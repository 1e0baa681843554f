"""The Spark of a test process: it can have one, so all its tests share it."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from penstock.engine.session import SparkHost


@functools.cache
def shared_spark() -> SparkHost:
    """A host that starts Spark when it is first asked for a context, and again after it was stopped."""
    return SparkHost(Path(os.environ["PENSTOCK_HOME"]) / "shared-spark")
