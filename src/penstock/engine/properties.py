"""Properties of Spark that the environment sets, and the masters that lanes can work on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.core.secret import mask
from penstock.errors import SparkMasterRefused

MASTER, CONF = "PENSTOCK_SPARK_MASTER", "PENSTOCK_SPARK_CONF_"
"""The master, and what names of variables begin with that set a property of Spark."""

_LOCAL = re.compile(r"local(\[([1-9][0-9]*|\*)(\s*,\s*[1-9][0-9]*)?\])?")


def local_master(given: str, conf: Mapping[str, str]) -> str:
    """Where Spark runs: what was given, unless a property says otherwise. SparkMasterRefused where no lane could call in."""
    master = conf.get("spark.master", given)
    # local-cluster too: it starts JVMs of its own beside, which know nothing of what a local one is given.
    if _LOCAL.fullmatch(master) is None:
        raise SparkMasterRefused(f"Spark cannot run on {mask(master)[:100]!r}: lanes work on the worker's own machine only")
    return master


def conf_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The properties of Spark that variables set: `…_SPARK_DRIVER_MEMORY` is `spark.driver.memory`, as is `…_DRIVER_MEMORY`.

    A name in capitals means small letters, since few properties have others and shells' habit is capitals; any other name is
    taken as it is written, with dots for underscores unless it has dots already.
    """
    found: dict[str, str] = {}
    for variable, value in environment.items():
        name = variable.removeprefix(CONF)
        if name == variable or not name:
            continue
        name = name.lower() if name.isupper() else name
        name = name if "." in name else name.replace("_", ".")
        found[name if name.startswith("spark.") else f"spark.{name}"] = value
    return found
