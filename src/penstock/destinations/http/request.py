"""Requests: the body of some changes, the key by which a repetition is known, and the signature."""

from __future__ import annotations

import hashlib
import hmac
import time
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.destinations.http.options import HttpOptions
from penstock.destinations.http.wave import Wave

Changes = Any
"""Some changes by their numbers: a list of one, or an array of many."""


class Requests:
    """Makes requests as the options say."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        # An empty Expect keeps libcurl from asking first whether a large body is welcome.
        self._common = [*options.header_lines, "Expect:"]

    def headers(self, wave: Wave, changes: Changes, body: bytes) -> list[str]:
        """The headers of one try: the key stays the same from try to try, the signature's time does not."""
        found = [*self._common, f"{self._options.idempotency_header}: {self._key(wave, changes)}"]
        if self._options.hmac_secret is not None:
            found.append(f"{self._options.signature_header}: {signature(self._options.hmac_secret, int(time.time()), body)}")
        return found

    @property
    def end(self) -> str:
        """What follows the text of each change."""
        return {"none": "", "array": ",", "lines": "\n"}[self._options.batch_mode]

    def body(self, wave: Wave, changes: Changes) -> bytes:
        """The changes' JSON."""
        if self._options.batch_mode == "none":
            return bytes(wave.text(changes[0]))
        texts, _ = wave.together(changes)
        return b"".join((b"[", texts[:-1], b"]")) if self._options.batch_mode == "array" else bytes(texts)

    def cut(self, wave: Wave, changes: Any) -> list[Changes]:
        """Changes that go one after the other, cut into what one request carries."""
        if self._options.batch_mode == "none":
            return [[change] for change in changes.tolist()]
        ends = np.cumsum(wave.sizes[changes])
        # A body in brackets has one comma less than objects.
        edges, most = [0], self._options.max_batch_bytes - (1 if self._options.batch_mode == "array" else 0)
        while edges[-1] < len(changes):
            begin = edges[-1]
            by_size = int(np.searchsorted(ends, (ends[begin - 1] if begin else 0) + most, "right"))
            edges.append(min(len(changes), begin + self._options.max_batch_changes, max(begin + 1, by_size)))
        return [changes[begin:end] for begin, end in pairwise(edges)]

    def tracks(self, wave: Wave, changes: Any) -> int:
        """How many tracks are worth it: many changes in a request leave less to send side by side."""
        most = self._options.concurrency
        if self._options.batch_mode == "none":
            return most
        by_count = -(-len(changes) // self._options.max_batch_changes)
        by_size = -(-int(wave.sizes[changes].sum()) // self._options.max_batch_bytes)
        return max(1, min(most, max(by_count, by_size)))

    def _key(self, wave: Wave, changes: Changes) -> str:
        """The event id of one change; of many, first and last, how many, and a digest of them all.

        The digest tells requests apart that begin and end alike but were cut under other options.
        """
        if self._options.batch_mode == "none":
            return wave.event_id(changes[0])
        digest = hashlib.sha256(wave.together(changes)[1]).hexdigest()
        return f"{wave.event_id(changes[0])}_{wave.event_id(changes[-1])}_{len(changes)}_{digest[:16]}"


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=<seconds>,v1=<HMAC-SHA256 of "<seconds>." and the body>`."""
    made = hmac.new(secret.encode(), b"%d." % at, hashlib.sha256)
    made.update(body)
    return f"t={at},v1={made.hexdigest()}"
