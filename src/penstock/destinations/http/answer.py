"""Answers: what a server's status or a failed connection means, and the error that it becomes. The one place for both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from penstock.errors import ChangeRefused, DestinationError, DestinationFailed, DestinationRefused, DestinationUnreachable

LONGEST_RETRY_AFTER = 3600.0
"""A server that asks for more patience than this is asked again after an hour all the same."""


class Verdict(Enum):
    """What becomes of the changes that a request carried."""

    TAKEN = "taken"
    AGAIN = "again"
    """The request is repeated after a while."""
    REFUSED = "refused"
    """The server will never take them."""
    STOP = "stop"
    """The server takes nothing like this, whatever it carries."""


@dataclass(frozen=True)
class Failure:
    """A request that got no answer: what happened, what mends it, and whether to try again soon can help."""

    reason: str
    remedy: str
    passing: bool = True


@dataclass(frozen=True)
class Answer:
    """A status, with the seconds of a Retry-After and the place that a redirect points to; or a failure."""

    status: int = 0
    retry_after: float = 0.0
    redirect: str = ""
    failure: Failure | None = None

    @property
    def verdict(self) -> Verdict:
        """What becomes of the changes."""
        if self.failure is not None:
            return Verdict.AGAIN if self.failure.passing else Verdict.STOP
        if 200 <= self.status < 300:
            return Verdict.TAKEN
        if self.status in _AGAIN or self.status >= 500:
            return Verdict.AGAIN
        return Verdict.REFUSED if self.status >= 400 and self.status not in _REMEDIES else Verdict.STOP

    @property
    def final(self) -> Verdict:
        """The same when the request has been repeated often enough: a conflict that stays is no longer a repetition's."""
        return Verdict.REFUSED if self.status == 409 else self.verdict

    @property
    def patience(self) -> float:
        """The seconds that the server asks for, within reason."""
        return min(self.retry_after, LONGEST_RETRY_AFTER)

    def error(self, origin: str) -> DestinationError:
        """The error when the request is not repeated any more, or never was."""
        if self.failure is not None:
            return DestinationUnreachable(f"{origin}: {self.failure.reason}", remedy=self.failure.remedy)
        said = f"{origin} answers {self.status}"
        if self.verdict is Verdict.AGAIN:
            if self.patience:
                seconds = math.ceil(self.patience)
                return DestinationFailed(
                    f"{said} and asks to be left alone for {seconds} s",
                    remedy="Nothing to do: delivery goes on after that time.",
                    status=self.status,
                    retry_after=seconds,
                )
            return DestinationFailed(said, remedy=_AGAIN.get(self.status, _BROKEN), status=self.status)
        if 300 <= self.status < 400:
            said += f" and points to {self.redirect}" if self.redirect else ""
            return DestinationRefused(said, remedy=_MOVED, status=self.status)
        return DestinationRefused(said, remedy=_REMEDIES.get(self.status, _STRANGE), status=self.status)

    def refusal(self, origin: str, table: str, event_id: str) -> ChangeRefused:
        """The error for one change that the server will never take."""
        return ChangeRefused(
            f"{origin} answers {self.status} to a change of {table} ({event_id})",
            remedy=_OF_CHANGES.get(self.status),
            status=self.status,
            table=table,
            event_id=event_id,
        )


_BROKEN = "Look at the server's log; delivery goes on by itself when it takes changes again."
_STRANGE = "Check that `url` is the address of the program that takes the changes."
_MOVED = "Redirects are not followed: set `url` to the address that the server really answers at."
_AGAIN = {
    408: "The server gives up on slow requests: raise its limit, or send smaller ones (max_batch_bytes).",
    409: "The server is still busy with the same request; delivery goes on by itself when it is done.",
    425: "The server does not want the request so early; delivery goes on by itself.",
    429: "The server wants fewer requests: lower `concurrency`, or send many changes a request with `batch_mode`.",
}
_REMEDIES = {
    401: "Give credentials that the server knows, in `headers` (Authorization) or as user:password@ in `url`.",
    402: "The server's operator wants to be paid first.",
    403: "Give the credentials the right to send here, or correct them in `headers` or `url`.",
    404: "Correct the path in `url`: the server knows none like it.",
    405: "Set `method` to one that the server takes at this path.",
    406: "Set the Accept header in `headers` to what the server gives, or correct `url`.",
    407: "The proxy wants credentials: give them in its address (https_proxy in the worker's environment).",
    410: "The address is gone for good: set `url` to the one that took its place.",
    415: "Set Content-Type in `headers` to what the server takes, or choose another `batch_mode`.",
    421: "Correct host and port in `url`: another server is responsible.",
    426: "The server wants another protocol: try https in `url`.",
    431: "Send fewer or shorter `headers`.",
    451: "The server may not take changes for legal reasons.",
}
_OF_CHANGES = {
    413: "The change is larger than the server takes: raise the server's limit for request bodies, or exclude the table.",
}
