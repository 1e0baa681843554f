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


def references(text: str) -> list[tuple[str, str]]:
    """The references of a text: kind (`env`, `file`) and name each, without defaults."""
    found = [(match[1], match[2]) for match in _REFERENCE.finditer(text)]
    return [(kind, body.partition(":-")[0] if kind == "env" else body) for kind, body in found]


def without_references(text: str, sign: str = "\ue000") -> str:
    """The text with a sign for every reference, and with the default where one is written out."""

    def replace(match: re.Match[str]) -> str:
        _, written, default = match[2].partition(":-") if match[1] == "env" else ("", "", "")
        return default if written else sign

    return _REFERENCE.sub(replace, text)


def shows_password(text: str) -> bool:
    """Whether a password stands in the text itself, rather than behind a reference."""
    sign = "\ue000"
    plain = without_references(text, sign)
    for pattern in (_URI_PASSWORD, _KEY_PASSWORD):
        for match in pattern.finditer(plain):
            if match[0][len(match["head"]) :].strip("'\"").replace(sign, ""):
                return True
    return False


def mask(text: str) -> str:
    """`text` with every password it shows replaced by asterisks."""
    return _KEY_PASSWORD.sub(rf"\g<head>{MASK}", _URI_PASSWORD.sub(rf"\g<head>{MASK}", text))
