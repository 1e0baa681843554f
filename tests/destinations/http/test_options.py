"""Options: what is refused before anything runs, and that secrets are not shown."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.control.validate import validate
from penstock.core.describe import describe
from penstock.destinations.http.options import HttpOptions

URL = "https://us:pass-word@example.com/hook/secret-path?token=hidden"


def flow(**options: Any) -> dict[str, Any]:
    """A flow file with one http destination."""
    source = {"type": "postgres", "options": {"dsn": "postgresql://h/d"}}
    return {"name": "f", "source": source, "destinations": [{"name": "hook", "type": "http", "options": options}]}


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "url"),
        ({"url": "example.com/x"}, "url"),
        ({"url": "ftp://example.com/x"}, "url"),
        ({"url": "https://"}, "url"),
        ({"url": "https://example.com:port/"}, "url"),
        ({"url": "https://example.com/a b"}, "url"),
        ({"url": URL, "method": "GET"}, "method"),
        ({"url": URL, "payload_mode": "wire"}, "payload_mode"),
        ({"url": URL, "payload_mode": "wal"}, "payload_mode"),
        ({"url": URL, "batch_mode": "many"}, "batch_mode"),
        ({"url": URL, "timeout": "0s"}, "timeout"),
        ({"url": URL, "timeout": 10}, "timeout"),
        ({"url": URL, "concurrency": 0}, "concurrency"),
        ({"url": URL, "headers": {"X-A": "a\r\nX-B: b"}}, "headers.X-A"),
        ({"url": URL, "headers": {"X A": "a"}}, "headers"),
        ({"url": URL, "idempotency_header": "a:b"}, "idempotency_header"),
        ({"url": URL, "ca_file": ""}, "ca_file"),
        ({"url": URL, "headers": {"Idempotency-key": "a"}}, ""),
        ({"url": URL, "headers": {"Content-Length": "1"}}, ""),
        ({"url": URL, "headers": {"X-A": "1", "x-a": "2"}}, ""),
        ({"url": URL, "follow_redirects": True}, "follow_redirects"),
    ],
)
def test_bad_options_are_refused_with_their_path(options: dict[str, Any], path: str) -> None:
    _, problems, _ = validate(flow(**options), strict=True)
    assert problems and problems[0].path.startswith(f"destinations[0].options{'.' if path else ''}{path}")
    shown = " ".join(f"{problem.message} {problem.remedy}" for problem in problems)
    assert "pass-word" not in shown and "hidden" not in shown


def test_references_are_not_judged_before_they_are_resolved() -> None:
    made, problems, _ = validate(flow(url="${env:NO_SUCH_URL}", headers={"Authorization": "${env:NO_SUCH_TOKEN}"}), strict=False)
    assert made is not None and problems == []


def test_secrets_are_marked_and_not_part_of_a_representation() -> None:
    made = HttpOptions(url=URL, headers={"X-Key": "header-value"}, hmac_secret="signing")
    assert not [word for word in ("pass-word", "hidden", "secret-path", "header-value", "signing") if word in repr(made)]
    assert made.origin == "https://example.com" and made.address == "https://example.com/hook/secret-path?token=hidden"
    assert {option.name for option in describe(HttpOptions) if option.secret} == {"url", "headers", "hmac_secret"}


def test_a_header_of_the_operator_takes_the_place_of_ours() -> None:
    made = HttpOptions(url=URL, headers={"Content-Type": "application/vnd.shop+json", "Authorization": "Bearer t"})
    assert made.header_lines == ["content-type: application/vnd.shop+json", "user-agent: penstock", "authorization: Bearer t"]
    with pytest.raises(ValidationError) as refused:
        HttpOptions.model_validate({"url": URL, "headers": {"Expect": "x"}})
    assert "pass-word" not in str(refused.value) and "hidden" not in str(refused.value)
