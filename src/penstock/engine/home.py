"""Where Spark's own files are: a slim SPARK_HOME in the cache, so that workers do not import pyspark from its zip."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path

from penstock.embedded.cache import built, cache_directory
from penstock.errors import SparkFailed

_PARTS = ("bin", "jars", "sbin", "data", "licenses")
# Not in conf/: a directory with files on the class path keeps Java from recording a class archive.
LOGGING = "log4j2.properties"
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


def spark_home() -> Path:
    """SPARK_HOME if it is set, else one made of links to pyspark's files without its copy of pyspark.

    Workers put `$SPARK_HOME/python/lib/pyspark.zip` first on their path when it is there: an import from it has no
    compiled files (0.9 s a process against 0.2 s), and the zip's list is read anew in every task.
    """
    if given := os.environ.get("SPARK_HOME"):
        return Path(given)
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SparkFailed("pyspark is not installed", remedy="Install penstock again with its dependencies.")
    package = Path(found.origin).resolve().parent

    def link(place: Path) -> None:
        for part in _PARTS:
            if (package / part).exists():
                (place / part).symlink_to(package / part)
        (place / "python").mkdir()
        (place / LOGGING).write_text(_LOGGING)

    mark = hashlib.sha256(f"{package}\n{_PARTS}\n{LOGGING}\n{_LOGGING}".encode()).hexdigest()[:16]
    return built(cache_directory("spark") / f"home-{mark}", link)
