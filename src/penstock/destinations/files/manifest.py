"""Manifests: one small file per epoch that names its files; writing it is what commits the epoch.

They lie in `_manifests/{flow}.{destination}/{upper half of upto}/{upto}.json`. Names sort as positions do, so the newest is
found by two listings, and no directory grows for ever: 4 GiB of the source's log share one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.core.epoch import Epoch
from penstock.destinations.files.disk import make_directory, write_durably
from penstock.destinations.files.names import MANIFESTS


@dataclass(frozen=True)
class Published:
    """One file of an epoch; `path` is relative to the destination's directory."""

    path: str
    schema: str
    table: str
    version: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What one epoch published."""

    flow: str
    destination: str
    source: str
    epoch: int
    generation: int
    after: int
    upto: int
    files: tuple[Published, ...]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest in a file."""
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(Published(**file) for file in data.pop("files"))
        return cls(files=files, **data)


class Manifests:
    """The manifests of one flow's destination."""

    def __init__(self, root: Path, flow: str, destination: str) -> None:
        self._home = root / MANIFESTS / f"{flow}.{destination}"
        self._shards: set[Path] = set()

    def holds(self, epoch: Epoch) -> bool:
        """Whether the epoch is committed."""
        return self._path(epoch.upto).exists()

    def add(self, epoch: Epoch, files: tuple[Published, ...]) -> None:
        """Commits the epoch, durably and at once."""
        path = self._path(epoch.upto)
        if path.parent not in self._shards:
            make_directory(path.parent)
            self._shards.add(path.parent)
        manifest = Manifest(
            epoch.flow, epoch.destination, epoch.source, epoch.number, epoch.generation, epoch.after, epoch.upto, files
        )
        write_durably(path, json.dumps(asdict(manifest)) + "\n")

    def newest(self) -> Manifest | None:
        """The manifest with the highest position."""
        for shard in sorted(_names(self._home), reverse=True):
            names = [name for name in _names(self._home / shard) if name.endswith(".json")]
            if names:
                return Manifest.read(self._home / shard / max(names))
        return None

    def __iter__(self) -> Iterator[Manifest]:
        for shard in sorted(_names(self._home)):
            for name in sorted(_names(self._home / shard)):
                if name.endswith(".json"):
                    yield Manifest.read(self._home / shard / name)

    @property
    def generation(self) -> int:
        """The highest generation that has acted here; 0 before the first."""
        try:
            return int((self._home / "_generation").read_text())
        except FileNotFoundError:
            return 0

    def raise_generation(self, generation: int) -> None:
        """Records that a worker of this generation has begun to act, durably."""
        make_directory(self._home)
        write_durably(self._home / "_generation", f"{generation}\n")

    def _path(self, upto: int) -> Path:
        return self._home / f"{upto >> 32:08X}" / f"{upto:016X}.json"


def _names(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name[0] not in "._"]
    except FileNotFoundError:
        return []
