"""The live server against its own document, with requests that nobody would think of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conftest import Site
from tests.control.definitions import definition

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.slow
def test_no_request_breaks_the_server_or_its_document(site: Site, tmp_path: Path) -> None:
    with site.client("rest") as client:
        client.create_flow(definition("shop"))
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{site.url}/openapi.json", "--checks", CHECKS]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "6", "--workers", "1", "--no-color"]
    command += ["--exclude-path", "/v1/watch", "--request-timeout", "60", "--suppress-health-check", "all"]
    # A token that it made would lock it out.
    command += ["--exclude-operation-id", "createToken"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
