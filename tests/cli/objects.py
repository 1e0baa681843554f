"""A flow file on a test's database, and the commands on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.app import run
from penstock.sources.postgres.wire import ReplicationConnection
from tests.conftest import Database


class Commands:
    """`penstock` on one flow; slots belong to the server, so that each test has names of its own."""

    def __init__(self, database: Database, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.database, self.directory, self._capsys = database, directory, capsys
        self.slot = f"s_{database.name}"
        self.state = directory / "state"
        self.file = directory / "shop.yaml"
        self.write()

    def write(self, **options: Any) -> None:
        options = {"dsn": self.database.dsn, "slot": self.slot, **options}
        path = {"path": str(self.directory / "log")}
        raw = {"name": "shop", "source": {"type": "postgres", "options": options}}
        self.file.write_text(yaml.safe_dump({**raw, "destinations": [{"name": "log", "type": "files", "options": path}]}))

    def __call__(self, *words: str) -> tuple[int, str]:
        """Runs a command line in which FLOW stands for the file; the exit code and all that was shown."""
        code = run([str(self.file) if word == "FLOW" else word for word in words])
        shown = self._capsys.readouterr()
        return code, shown.out + shown.err

    def publication(self, *words: str) -> tuple[int, str]:
        return self("publication", words[0], "--flow", "FLOW", *words[1:])

    def slots(self, *words: str) -> tuple[int, str]:
        return self("slot", words[0], "--flow", "FLOW", *words[1:])

    def cleanup(self, *words: str) -> tuple[int, str]:
        return self("flow", "cleanup", "FLOW", "--state", str(self.state), *words)

    def json(self, *words: str) -> Any:
        code, shown = self(*words, "--json")
        assert code == 0, shown
        return json.loads(shown)

    def published(self) -> list[str]:
        return [row[0] for row in self.database.rows("SELECT tablename FROM pg_publication_tables ORDER BY 1")]

    @contextmanager
    def reading(self, publication: str = "penstock_shop") -> Iterator[int]:
        """Somebody who reads from the slot meanwhile; the process that the server has for them."""
        reader = ReplicationConnection.connect(self.database.dsn, application_name="penstock shop")
        reader.start_replication(self.slot, 0, {"proto_version": "1", "publication_names": publication})
        try:
            yield int(self.database.rows("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", self.slot)[0][0])
        finally:
            reader.end()
