"""The class archive: what the JVM has loaded and verified once, so that the next start takes half the time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.embedded.cache import cache_directory
from penstock.embedded.java import JavaHome
from penstock.engine.jvm import OPTIONS, SMALL

_QUIET = ["-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"]
# Where it was recorded for: anywhere else every page of it has to be changed, and is memory of the JVM's own (90 MB).
_IN_PLACE = ["-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"]


@dataclass
class ClassArchive:
    """The archive for one Java and one set of jars; a JVM that it does not fit starts without it and says nothing."""

    java: JavaHome
    home: Path

    def __post_init__(self) -> None:
        jars = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in (self.home / "jars").iterdir())
        facts = f"{self.java.origin}\n{self.java.release}\n{self.home}\n{jars}"
        mark = hashlib.sha256(facts.encode()).hexdigest()[:16]
        directory = cache_directory("spark")
        self.path = directory / f"classes-{mark}.jsa"
        self._base = directory / f"base-{mark}.jsa"
        self._note = directory / f"classes-{mark}.txt"
        # Unique, because several processes may record at the same time; the last one that is whole wins.
        self._draft = directory / f".classes-{mark}.{os.getpid()}.jsa"

    def is_current(self) -> bool:
        """Whether there is one, recorded by a JVM with the options that JVMs have now; another still serves, less well."""
        # Its name says nothing of the options, and one of others is shared less well.
        with contextlib.suppress(OSError):
            return self.path.exists() and self._note.read_text() == _recipe()
        return False

    def options(self) -> list[str]:
        """The JVM options that make use of the archive; none while there is none."""
        if not self.path.exists():
            return []
        return [f"-XX:SharedArchiveFile={':'.join([*self._needed_base(), str(self.path)])}", *_IN_PLACE, *_QUIET]

    def recording_options(self) -> list[str]:
        """The JVM options that make a JVM write the archive when it ends, which takes it some 10 s."""
        base = self._needed_base()
        if base and not self._base.exists():
            self._dump_base()
        return [*(f"-XX:SharedArchiveFile={path}" for path in base), f"-XX:ArchiveClassesAtExit={self._draft}", *_QUIET]

    def publish(self) -> None:
        """Put what an ended JVM has recorded in its place; half an archive, of one that was ended meanwhile, is thrown away."""
        with contextlib.suppress(FileNotFoundError):
            with self._draft.open("rb") as draft:
                # Java writes the first bytes last.
                whole = any(draft.read(4))
            if not whole:
                self._draft.unlink()
                return
            self._draft.rename(self.path)
            self._note.write_text(_recipe())

    def is_blamed(self, report: str) -> bool:
        """Whether what a JVM said at its end speaks of the archive; one that was killed while it started says nothing of it."""
        said = report.lower()
        return any(word in said for word in ("shared archive", "archiverelocationmode", "[cds", "sigbus", "sigsegv"))

    def discard(self) -> None:
        """Forget the archive; the next `prepare` records another."""
        for path in (self.path, self._base, self._note):
            path.unlink(missing_ok=True)

    def _needed_base(self) -> list[str]:
        # Ours builds upon an archive of Java's own classes, which the wheel's Java comes without.
        return [] if (self.java.origin / "lib/server/classes.jsa").exists() else [str(self._base)]

    def _dump_base(self) -> None:
        draft = self._base.with_name(f".{self._base.name}.{os.getpid()}")
        command = [str(self.java.executable), "-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={draft}"]
        subprocess.run(command, capture_output=True, timeout=120, check=False)
        with contextlib.suppress(FileNotFoundError):
            draft.rename(self._base)


def _recipe() -> str:
    """What the JVM was asked for when it recorded."""
    return "\n".join([*OPTIONS, *SMALL, *_IN_PLACE])
