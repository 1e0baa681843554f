"""Options of the http destination."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Literal
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit, urlunsplit

from pydantic import Field, StringConstraints, field_validator, model_validator

from penstock.core.options import Duration, Size
from penstock.destinations.base import DestinationOptions

HeaderName = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
"""A token, as RFC 9110 has it."""
HeaderValue = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?$")]
"""Visible ASCII; a line break would end the header and begin another."""

_OURS = frozenset({"content-length", "transfer-encoding", "connection", "expect"})
_SECRET = {"secret": True}


class HttpOptions(DestinationOptions):
    """Where changes are sent to, how, and for how long it is tried."""

    url: Annotated[str, Field(min_length=1, repr=False, json_schema_extra={**_SECRET, "connection": True})]
    """Address that every request goes to, http or https; user:password@ in it becomes basic authentication."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """Method of the requests."""
    payload_mode: Literal["record_json"] = "record_json"
    """What is sent of a change: its JSON object."""
    batch_mode: Literal["none", "array", "lines"] = "none"
    """How many changes a request has: one, or many as a JSON array or as lines (NDJSON)."""
    max_batch_changes: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Most changes of one request, where it has many."""
    max_batch_bytes: Annotated[Size, Field(ge=1)] = 1 << 20
    """A request with many changes ends before it would be larger than this; a larger change goes alone."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 8
    """Requests in flight per lane; two changes of one key never are at the same time."""
    timeout: Annotated[Duration, Field(gt=0)] = 10.0
    """Longest time for one request, from connecting to the end of its answer."""
    headers: Annotated[dict[HeaderName, HeaderValue], Field(repr=False, json_schema_extra=_SECRET)] = Field(default_factory=dict)
    """Headers of every request; their values are never shown."""
    max_retries: Annotated[int, Field(ge=0)] = 4
    """How often a lane repeats a request that failed for a while, before the flow's retry rules take over."""
    backoff_base: Duration = 0.2
    """Wait before the first repetition; the true wait is half of it to all of it, by chance."""
    backoff_max: Duration = 10.0
    """Longest wait between repetitions; when the server's Retry-After is longer, the flow waits and the lane does not."""
    backoff_factor: Annotated[float, Field(ge=1)] = 2.0
    """Growth of the wait from repetition to repetition."""
    idempotency_header: HeaderName = "Idempotency-Key"
    """Header with a key that is the same whenever the same change is sent again."""
    hmac_secret: Annotated[Annotated[str, Field(min_length=1)] | None, Field(repr=False, json_schema_extra=_SECRET)] = None
    """Secret that requests are signed with (HMAC-SHA256 over time and body); not signed when not set."""
    signature_header: HeaderName = "Penstock-Signature"
    """Header with the signature: t=<Unix seconds>,v1=<hexadecimal HMAC-SHA256 of "<t>." and the body>."""
    verify: bool = True
    """Whether the server's certificate must be good."""
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    """File with the authorities (PEM) that the server's certificate may come from; the system's when not set."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if re.search(r"[\x00-\x20\x7f]", url):
            raise ValueError("an address has no spaces or control characters; write %20")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            # What urlsplit says shows the address, which may hold a password.
            raise ValueError("is not a web address such as https://example.com/changes") from None
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError("is not a web address such as https://example.com/changes")
        return url

    @model_validator(mode="after")
    def _headers_are_told_apart(self) -> HttpOptions:
        made = {self.idempotency_header.lower()} | ({self.signature_header.lower()} if self.hmac_secret else set())
        taken = sorted(name for name in self.headers if name.lower() in made | _OURS)
        if taken:
            raise ValueError(f"headers: {', '.join(taken)} is made by penstock")
        if len({name.lower() for name in self.headers}) < len(self.headers):
            raise ValueError("headers: the same name stands there twice")
        return self

    @property
    def address(self) -> str:
        """The url without user and password."""
        parts = urlsplit(self.url)
        return urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path or "/", parts.query, ""))

    @property
    def origin(self) -> str:
        """Scheme, host and port: what may be shown, since paths and queries of such addresses often are secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def header_lines(self) -> list[str]:
        """The headers that every request has."""
        found = {"content-type": "application/x-ndjson" if self.batch_mode == "lines" else "application/json"}
        found |= {"user-agent": "penstock"} | self._authorization()
        return [f"{name}: {value}" for name, value in {**found, **{n.lower(): v for n, v in self.headers.items()}}.items()]

    def _authorization(self) -> dict[str, str]:
        parts = urlsplit(self.url)
        if parts.username is None and parts.password is None:
            return {}
        pair = unquote_to_bytes(parts.username or "") + b":" + unquote_to_bytes(parts.password or "")
        return {"authorization": f"Basic {base64.b64encode(pair).decode()}"}
