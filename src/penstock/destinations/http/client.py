"""The client: requests in flight side by side over connections that stay open between epochs. The one room that knows libcurl."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import pycurl

from penstock.destinations.http.answer import Answer, Failure
from penstock.destinations.http.options import HttpOptions

MOST_BODY = 64 << 10
"""Bytes of an answer's body that are read, so that its connection can be used again; a longer one is cut off."""

Tag = TypeVar("Tag")


class _Exchange(Generic[Tag]):
    """One libcurl handle: a request at a time, and what came back."""

    def __init__(self, options: HttpOptions) -> None:
        self.curl = pycurl.Curl()
        self.tag: Tag | None = None
        self._read = 0
        _set_up(self.curl, options)
        self.curl.setopt(pycurl.CUSTOMREQUEST, options.method)
        self.curl.setopt(pycurl.POST, 1)
        self.curl.setopt(pycurl.WRITEFUNCTION, self._take)

    def begin(self, tag: Tag, headers: list[str], body: bytes) -> None:
        """The next request."""
        self.tag, self._read = tag, 0
        self.curl.setopt(pycurl.HTTPHEADER, headers)
        self.curl.setopt(pycurl.POSTFIELDS, body)

    def answer(self, code: int, message: str) -> Answer:
        """What libcurl has found."""
        status = int(self.curl.getinfo(pycurl.RESPONSE_CODE))
        cut_off = code == pycurl.E_WRITE_ERROR and self._read > MOST_BODY
        if code != pycurl.E_OK and not cut_off:
            return Answer(failure=failure(code, message))
        if status < 400 and status // 100 != 3:
            return Answer(status)
        return Answer(status, float(self.curl.getinfo(pycurl.RETRY_AFTER)), _origin(self.curl.getinfo(pycurl.REDIRECT_URL)))

    def _take(self, piece: bytes) -> int | None:
        self._read += len(piece)
        return -1 if self._read > MOST_BODY else None


class Client(Generic[Tag]):
    """Sends requests and tells their answers; used by one thread."""

    def __init__(self, options: HttpOptions) -> None:
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, options.concurrency)
        self._free = [_Exchange[Tag](options) for _ in range(options.concurrency)]
        self._busy: dict[Any, _Exchange[Tag]] = {}

    def start(self, tag: Tag, headers: list[str], body: bytes) -> None:
        """Begins a request; there may be as many as `concurrency`."""
        exchange = self._free.pop()
        exchange.begin(tag, headers, body)
        self._busy[exchange.curl] = exchange
        self._multi.add_handle(exchange.curl)

    def answers(self, seconds: float) -> list[tuple[Tag, Answer]]:
        """What has been answered, after waiting no longer than that for a first one; just waits when nothing is in flight."""
        if not self._busy:
            time.sleep(seconds)
            return []
        found = self._advance()
        if not found:
            self._multi.select(seconds)
            found = self._advance()
        return found

    def abandon(self) -> None:
        """Ends what is in flight, with its connections."""
        for curl, exchange in self._busy.items():
            self._multi.remove_handle(curl)
            self._free.append(exchange)
        self._busy.clear()

    def close(self) -> None:
        """Ends every connection."""
        self.abandon()
        for exchange in self._free:
            exchange.curl.close()
        self._multi.close()

    def _advance(self) -> list[tuple[Tag, Answer]]:
        while self._multi.perform()[0] == pycurl.E_CALL_MULTI_PERFORM:
            pass
        found: list[tuple[Tag, Answer]] = []
        left = 1
        while left:
            left, good, bad = self._multi.info_read()
            for curl, code, message in [*((curl, pycurl.E_OK, "") for curl in good), *bad]:
                self._multi.remove_handle(curl)
                exchange = self._busy.pop(curl)
                self._free.append(exchange)
                assert exchange.tag is not None
                found.append((exchange.tag, exchange.answer(code, message)))
        return found


def connect(options: HttpOptions) -> Failure | None:
    """Resolves, connects and shakes hands, and sends no request; what stands in the way, if anything does."""
    curl = pycurl.Curl()
    try:
        _set_up(curl, options)
        curl.setopt(pycurl.CONNECT_ONLY, 1)
        curl.perform()
    except pycurl.error as error:
        return failure(int(error.args[0]), str(error.args[1]))
    finally:
        curl.close()
    return None


def failure(code: int, message: str) -> Failure:
    """libcurl's error as a failure of ours; `message` is shown for certificates only, where it holds no secret."""
    if code in _CERTIFICATE:
        reason, remedy = _CERTIFICATE[code]
        return Failure(f"{reason} ({message})" if message else reason, remedy, passing=False)
    reason, remedy = _FAILURES.get(code, (f"libcurl gives up with code {code}", _LOST[1]))
    return Failure(reason, remedy)


def _set_up(curl: pycurl.Curl, options: HttpOptions) -> None:
    curl.setopt(pycurl.URL, options.address.encode())
    curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
    curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    curl.setopt(pycurl.NOSIGNAL, 1)
    curl.setopt(pycurl.TIMEOUT_MS, max(1, round(options.timeout * 1000)))
    if not options.verify:
        curl.setopt(pycurl.SSL_VERIFYPEER, 0)
        curl.setopt(pycurl.SSL_VERIFYHOST, 0)
    elif options.ca_file is not None:
        curl.setopt(pycurl.CAINFO, str(Path(options.ca_file).expanduser()))


def _origin(url: str | None) -> str:
    parts = urlsplit(url or "")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""


_LOST = (
    "the connection was lost before the answer was complete",
    "Look at the server's log; the request is repeated with the same key.",
)
_FAILURES = {
    pycurl.E_COULDNT_RESOLVE_HOST: ("its name is not known", "Correct the host in `url`, or mend the worker's name service."),
    pycurl.E_COULDNT_RESOLVE_PROXY: (
        "its proxy's name is not known",
        "Correct https_proxy or http_proxy in the worker's environment.",
    ),
    pycurl.E_COULDNT_CONNECT: (
        "no connection can be made",
        "Check host, port and firewall, and that the server runs; delivery goes on by itself when it answers.",
    ),
    pycurl.E_OPERATION_TIMEDOUT: (
        "no complete answer within `timeout`",
        "Look for what holds the server up, or raise `timeout`; the request is repeated with the same key.",
    ),
    pycurl.E_SSL_CONNECT_ERROR: (
        "the TLS handshake fails",
        "Check that the server speaks TLS at this port (else write http:// in `url`), and which versions it allows.",
    ),
    pycurl.E_GOT_NOTHING: _LOST,
    pycurl.E_SEND_ERROR: _LOST,
    pycurl.E_RECV_ERROR: _LOST,
    pycurl.E_PARTIAL_FILE: _LOST,
    pycurl.E_FTP_WEIRD_SERVER_REPLY: (
        "it does not speak HTTP",
        "Correct scheme and port in `url`: something else listens there, perhaps https.",
    ),
    pycurl.E_UNSUPPORTED_PROTOCOL: (
        "it does not speak HTTP/1.x",
        "Correct scheme and port in `url`: something else listens there.",
    ),
}
_CERTIFICATE = {
    pycurl.E_PEER_FAILED_VERIFICATION: (
        "its certificate is not accepted",
        "Give the authority that signed it with `ca_file`, or correct the host in `url`; `verify: false` takes any certificate.",
    ),
    pycurl.E_SSL_CACERT_BADFILE: (
        "the certificates of authorities cannot be read",
        "`ca_file` must be a file with certificates in PEM form that the worker may read.",
    ),
}
