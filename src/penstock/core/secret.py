"""Secrets: references that are resolved where a flow runs, and the masking of everything that is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_REFERENCE = re.compile(r"\$\{(env|file):([^}]*?)\}")
_URI_PASSWORD = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@]+(?=@)", re.IGNORECASE)
# What a dot and a colon enclose is a table in a sentence (public.secret: it was dropped) and no setting.
_KEY_PASSWORD = re.compile(
    r"(?P<head>\b(?:password|passwd|sslpassword|secret|secret_key|session_token|token|x-amz-signature|x-amz-credential)"
    r"\s*(?:=|(?<!\.password)(?<!\.passwd)(?<!\.secret)(?<!\.token):)\s*)(?:'(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s&;,}]+)",
    re.IGNORECASE,
)

MASK = "****"


def has_reference(value: object) -> bool:
    """Whether a string contains a `${env:…}` or `${file:…}` reference."""
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def resolve(value: Any, path: str, missing: Callable[[str, str, str], None], environ: Mapping[str, str] | None = None) -> Any:
    """`value` with references replaced; one that cannot be is left as it is and told to `missing(path, message, remedy)`."""
    environ = os.environ if environ is None else environ
    if isinstance(value, dict):
        return {k: resolve(v, f"{path}.{k}" if path else str(k), missing, environ) for k, v in value.items()}
    if isinstance(value, list):
        return [resolve(v, f"{path}[{i}]", missing, environ) for i, v in enumerate(value)]
    if not has_reference(value):
        return value

    def replace(match: re.Match[str]) -> str:
        kind, body = match[1], match[2]
        if kind == "env":
            name, _, default = body.partition(":-")
            found = environ.get(name)
            if found is not None and (found or ":-" not in body):
                return found
            if ":-" in body:
                return default
            missing(path, f"environment variable {name} is not set", f"Set {name}, or give a default with ${{env:{name}:-…}}.")
            return match[0]
        try:
            return Path(body).read_text().rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            missing(path, f"file {body} cannot be read: {type(error).__name__}", "Create the file or mend its rights.")
            return match[0]

    return _REFERENCE.sub(replace, value)


def mask(text: str) -> str:
    """`text` with every password it shows replaced by asterisks."""
    return _KEY_PASSWORD.sub(rf"\g<head>{MASK}", _URI_PASSWORD.sub(rf"\g<head>{MASK}", text))
