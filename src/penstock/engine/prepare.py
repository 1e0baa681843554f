"""What is costly and needed once per machine, done ahead of the first run: `python -m penstock.engine.prepare`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from penstock.core.connectors import cards
from penstock.embedded.java import find_java
from penstock.engine.archive import ClassArchive
from penstock.engine.home import spark_home
from penstock.engine.session import SparkHost


def prepare() -> None:
    """Write the class archive that makes Spark start in a third of the time, and compile the kernels; idempotent.

    An archive that was recorded with other options than the JVM has now is recorded anew.
    """
    for card in cards("source").values():
        card.load("capture").warm()
    recorded = ClassArchive(find_java(), spark_home()).is_current()
    # Two tasks and no retries: what cannot work should say so at once.
    with (
        tempfile.TemporaryDirectory(prefix="penstock-") as state,
        SparkHost(Path(state), "local[2]", recording=not recorded) as host,
    ):
        for _ in range(3):
            # The first job starts the daemon, which compiles every kernel into the cache.
            host.context().parallelize(range(2), 2).map(str).collect()


if __name__ == "__main__":
    prepare()
