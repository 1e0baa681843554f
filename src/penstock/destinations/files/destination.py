"""Driver half of the files destination: publishes an epoch's files by renames and one manifest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.core.epoch import Epoch
from penstock.core.finding import Finding
from penstock.core.schema import TableSchema
from penstock.destinations.base import Destination, Held, Place, Receipt
from penstock.destinations.files.disk import make_directory, side_by_side, sync_directory, write_durably
from penstock.destinations.files.manifest import Manifests, Published
from penstock.destinations.files.names import file_name, is_of, schema_path, staged_prefix, staging_directory, table_directory
from penstock.destinations.files.options import FilesOptions
from penstock.destinations.files.writer import file_format
from penstock.destinations.filesystem import mended, probe
from penstock.errors import DestinationError, LedgerFenced, SchemaRefused
from penstock.observe import failpoints


class FilesDestination(Destination):
    """A change log in files."""

    options: FilesOptions

    def __init__(self, place: Place, options: FilesOptions) -> None:
        super().__init__(place, options)
        self._root = options.root
        self._suffix = file_format(options).suffix
        self._manifests = Manifests(self._root, place.flow, place.destination)
        self._generation = 0
        self._staging = staging_directory(self._root, place.flow, place.destination)
        self._claimed: set[Path] = set()
        self._described: dict[Path, str] = {}
        self._leftovers: dict[int, list[Path]] = {}

    def check(self) -> list[Finding]:
        """Whether the directory, or the nearest one above it that exists, can be written."""
        subject = f"files: {self._root}"
        try:
            probe(self._root)
        except DestinationError as error:
            return [Finding(subject, False, error.message, error.remedy, error.code)]
        return [Finding(subject, True, "writable")]

    def prepare(self, tables: Sequence[TableSchema]) -> None:
        """Makes each table's directory; SchemaRefused when another flow's change log lies there."""
        with mended(self._root):
            side_by_side(self._claim, tables)

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        """Publishes the epoch: renames, then the manifest, each durable before the next; a second call changes nothing."""
        with mended(self._root):
            # An epoch that was planned before a take-over has its planner's generation, and is the successor's to commit.
            generation = max(epoch.generation, self._generation)
            self._fence(generation)
            if not self._manifests.holds(epoch):
                failpoints.reach("destination.before_publish")
                files = self._publish(epoch, receipts)
                # Once more: renames are the same whoever makes them, but only one worker may write the line that counts.
                self._fence(generation)
                self._manifests.add(epoch, files)
                failpoints.reach("destination.after_publish")
            self._clear(epoch.number, only=True)

    def fence(self, generation: int) -> None:
        """Writes the generation beside the manifests."""
        with mended(self._root):
            self._fence(generation)

    def committed(self) -> Held | None:
        """What the newest manifest says; also clears what dead attempts at epochs up to it have staged."""
        with mended(self._root):
            self._fence(self._generation)
            self._manifests.settle()
            held = self._manifests.held()
            self._clear(held.epoch if held is not None else 0, only=False)
            return held

    def abort(self, epoch: Epoch) -> None:
        """Removes what attempts have staged.

        Files that a crash left published without a manifest stay, so that no reader sees rows vanish: the epoch's next
        attempt replaces them by the same bytes, and removes those that it does not have (when options have changed).
        """
        with mended(self._root):
            self._clear(epoch.number, only=True)
            held = self._manifests.held()
            if held is None or not held.has(epoch):
                alone = held is None or held.position < epoch.upto
                self._leftovers[epoch.number] = list(self._published(epoch, alone=alone))

    def close(self) -> None:
        """Gives back the manifests' file."""
        self._manifests.close()

    def _publish(self, epoch: Epoch, receipts: Sequence[Receipt]) -> tuple[Published, ...]:
        files: list[Published] = []
        touched: dict[Path, None] = {}
        for bucket, receipt in enumerate(receipts):
            for file in receipt["files"]:
                directory = table_directory(self._root, file["schema"], file["table"])
                if directory not in self._claimed and directory not in touched:
                    make_directory(directory)
                final = directory / file_name(epoch, bucket, file["version"], file["number"], self._suffix)
                _move(self._staging / file["staged"], final)
                touched[directory] = None
                about = (file["schema"], file["table"], file["version"], file["rows"], file["bytes"])
                files.append(Published(str(final.relative_to(self._root)), *about))
                failpoints.reach("destination.in_publish")
        kept = {self._root / file.path for file in files}
        for path in self._leftovers.pop(epoch.number, []):
            if path not in kept:
                path.unlink(missing_ok=True)
                touched[path.parent] = None
        for directory in touched:
            sync_directory(directory)
        return tuple(files)

    def _published(self, epoch: Epoch, *, alone: bool) -> Iterator[Path]:
        """Files that carry the epoch's name; a walk over all directories, for recovery only."""
        for directory in self._root.glob("[!_.]*/*/"):
            with os.scandir(directory) as entries:
                yield from (directory / e.name for e in entries if is_of(epoch, e.name, alone=alone))

    def _claim(self, table: TableSchema) -> None:
        directory = table_directory(self._root, table.schema, table.name)
        self._describe(directory, table)
        if directory in self._claimed:
            return
        mine = {"schema": table.schema, "table": table.name, "flow": self.place.flow, "destination": self.place.destination}
        owner = directory / "_table.json"
        if not owner.exists():
            write_durably(owner, json.dumps(mine) + "\n")
        found = json.loads(owner.read_text(encoding="utf-8"))
        if found != mine:
            raise SchemaRefused(
                f"{directory} already holds the change log of {found['schema']}.{found['table']}"
                f" of flow {found['flow']}, destination {found['destination']}",
                remedy="Give this destination a path of its own; two change logs in one directory would overwrite each other.",
                table=table.qualified,
            )
        self._claimed.add(directory)

    def _describe(self, directory: Path, table: TableSchema) -> None:
        """Keeps the version's columns beside the files, for formats whose files do not say their types."""
        description = schema_path(directory, table.version)
        text = json.dumps(table.to_data()) + "\n"
        if self._described.get(description) != text:
            make_directory(description.parent)
            if not description.exists() or description.read_text(encoding="utf-8") != text:
                write_durably(description, text)
            self._described[description] = text

    def _fence(self, generation: int) -> None:
        seen = self._manifests.generation
        if generation and seen > generation:
            raise LedgerFenced(f"{self._root}: generation {seen} has taken over, this worker has {generation}")
        if generation > seen:
            self._manifests.raise_generation(generation)
        self._generation = max(generation, self._generation)

    def _clear(self, number: int, *, only: bool) -> None:
        """Removes what attempts at an epoch have staged, or at all up to it, with what earlier versions named otherwise."""
        mine, next_one = staged_prefix(number), staged_prefix(number + 1)
        names = os.listdir(self._staging) if self._staging.is_dir() else []
        for name in names:
            older = not only and (name < next_one or not name.startswith(".e"))
            if name.endswith(".tmp") and (older or name.startswith(mine)):
                (self._staging / name).unlink(missing_ok=True)


def _move(staged: Path, final: Path) -> None:
    """Publishes a file; one that an interrupted call for the same epoch has already moved is left as it is."""
    try:
        os.rename(staged, final)
    except FileNotFoundError:
        if not final.exists():
            raise
