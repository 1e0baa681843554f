"""What becomes of every kind of answer and failure, against a server that really gives it."""

from __future__ import annotations

import datetime as dt
import email.utils
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.connectors import find
from penstock.destinations.base import Place
from penstock.errors import ChangeRefused, DestinationError, DestinationFailed, DestinationRefused, DestinationUnreachable
from tests.batches import insert, update
from tests.destinations.http.receiver import Arrived, Receiver, Reply, reply
from tests.destinations.http.sending import send
from tests.flows import wait_until
from tests.sources.postgres.secure import Authority

ROWS = [insert({"id": n, "v": n, "big": "body-value", "large": None}, ordinal=n) for n in range(1, 4)]


def refused(kind: type[DestinationError], target: Receiver | str, **options: Any) -> DestinationError:
    """Sends, and returns the error; it has a remedy of its own and shows nothing that is secret."""
    options = {"headers": {"X-Secret": "top-secret"}, **options}
    with pytest.raises(kind) as found:
        send(target, ROWS, **options)
    assert type(found.value) is kind
    shown = f"{found.value.message} {found.value.remedy} {found.value.facts}"
    assert not [word for word in ("top-secret", "body-value", "pass-word", "/changes") if word in shown], shown
    return found.value


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_every_answer_of_success_is_good(status: int) -> None:
    with Receiver(lambda _: reply(status)) as receiver:
        assert send(receiver, ROWS)["rows"] == 3


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_passing_answers_are_tried_again_with_the_same_key(status: int) -> None:
    answers = itertools.chain([status] * 2, itertools.repeat(200))
    with Receiver(lambda _: reply(next(answers))) as receiver:
        receipt = send(receiver, ROWS[:1], max_retries=2)
    assert receipt["rows"] == 1 and receipt["counts"] == {"retries": 2}
    assert len(receiver.keys) == 3 and len(set(receiver.keys)) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_an_answer_that_does_not_pass_goes_to_the_engine(status: int) -> None:
    with Receiver(lambda _: reply(status)) as receiver:
        error = refused(DestinationFailed, receiver, max_retries=2, concurrency=1)
    assert len(receiver.arrived) == 3 and error.facts["status"] == status and error.retry == "timed"


@pytest.mark.parametrize("status", [400, 409, 413, 422, 499])
def test_a_refused_change_is_named_and_nothing_is_sent_after_it(status: int) -> None:
    def answer(arrived: Arrived) -> Reply:
        return reply(status if arrived.changes[0]["ordinal"] == 2 else 200, b'{"error":"body-value"}')

    with Receiver(answer) as receiver:
        error = refused(ChangeRefused, receiver, concurrency=1, max_retries=1)
        event = receiver.arrived[1].changes[0]["event_id"]
        assert error.facts == {"status": status, "table": "public.orders", "event_id": event} and error.retry == "manual"
        assert "raise the server's limit" in error.remedy if status == 413 else error.remedy
        assert max(change["ordinal"] for change in receiver.changes) == 2


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (301, "Redirects are not followed"),
        (401, "credentials"),
        (403, "right"),
        (404, "path"),
        (405, "`method`"),
        (415, "Content-Type"),
    ],
)
def test_an_answer_about_the_address_stops_with_its_remedy(status: int, remedy: str) -> None:
    with Receiver(lambda _: reply(status, location="http://elsewhere.example/changes?token=pass-word")) as receiver:
        error = refused(DestinationRefused, receiver, concurrency=1)
    assert remedy in error.remedy and len(receiver.arrived) == 1 and str(status) in error.message
    assert ("http://elsewhere.example" in error.message) == (status == 301)


def in_a_moment(seconds: float) -> str:
    return email.utils.format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(("status", "form"), [(429, "seconds"), (503, "date")])
def test_retry_after_is_waited_for(status: int, form: str) -> None:
    times: list[float] = []

    def answer(arrived: Arrived) -> Reply:
        times.append(time.monotonic())
        return reply(status, retry_after="1" if form == "seconds" else in_a_moment(2)) if len(times) == 1 else reply()

    with Receiver(answer) as receiver:
        send(receiver, ROWS, concurrency=1, backoff_max="10s")
    assert len(times) == 4 and times[1] - times[0] > 0.5


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("form", "least", "most"), [("40", 40, 40), ("date", 100, 120), ("9999999", 3600, 3600)])
def test_a_long_retry_after_is_handed_to_the_engine(status: int, form: str, least: int, most: int) -> None:
    with Receiver(lambda _: reply(status, retry_after=in_a_moment(119) if form == "date" else form)) as receiver:
        error = refused(DestinationFailed, receiver, concurrency=1)
    assert len(receiver.arrived) == 1 and least <= int(error.facts["retry_after"]) <= most
    assert f"{error.facts['retry_after']} s" in error.message


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_no_server_at_the_port() -> None:
    error = refused(DestinationUnreachable, f"http://us:pass-word@127.0.0.1:{unused_port()}/changes", max_retries=1)
    assert "no connection" in error.message and "port" in error.remedy


def test_a_name_that_nobody_knows() -> None:
    error = refused(DestinationUnreachable, "http://us:pass-word@nowhere.invalid/changes", max_retries=0)
    assert "nowhere.invalid" in error.message and "name is not known" in error.message


def test_a_server_that_does_not_answer_in_time() -> None:
    released = threading.Event()
    with Receiver(lambda _: reply() if released.wait(60) else None) as receiver:
        error = refused(DestinationUnreachable, receiver, timeout="300ms", max_retries=1, concurrency=1)
        released.set()
    assert "timeout" in error.message and len(receiver.arrived) == 2


@pytest.mark.parametrize("piece", [b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"])
def test_a_server_that_closes_in_the_middle(piece: bytes) -> None:
    with Receiver(lambda _: [piece]) as receiver:
        error = refused(DestinationUnreachable, receiver, max_retries=1, concurrency=1)
    assert "connection was lost" in error.message and len(set(receiver.keys)) == 1


def test_a_server_that_speaks_something_else() -> None:
    with Receiver(lambda _: [b"220 mail.example ESMTP\r\n"]) as receiver:
        error = refused(DestinationUnreachable, receiver, max_retries=0)
    assert "does not speak HTTP" in error.message


def endless() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    while True:
        yield b"10000\r\n" + b"x" * 65536 + b"\r\n"


def test_an_endless_answer_is_cut_off_and_counts_by_its_status() -> None:
    with Receiver(lambda _: endless()) as receiver:
        assert send(receiver, ROWS)["rows"] == 3
        assert len(receiver.arrived) == 3


def test_tls_with_its_own_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("127.0.0.1", "IP:127.0.0.1"))
    ca_file = str(authority.certificate)
    with Receiver(tls=context) as receiver:
        error = refused(DestinationUnreachable, receiver)
        assert "certificate" in error.message and "`ca_file`" in error.remedy and not receiver.arrived
        assert send(receiver, ROWS, ca_file=ca_file)["rows"] == 3
        assert send(receiver, ROWS, verify=False)["rows"] == 3
        assert "`ca_file`" in refused(DestinationUnreachable, receiver, ca_file=str(tmp_path / "missing.pem")).remedy
        error = refused(DestinationUnreachable, receiver.url.replace("127.0.0.1", "localhost"), ca_file=ca_file)
        assert "certificate" in error.message
    with Receiver() as plain:
        error = refused(DestinationUnreachable, plain.url.replace("http", "https"), max_retries=0)
        assert "TLS handshake" in error.message


def test_a_check_connects_and_sends_nothing() -> None:
    card = find("destination", "http")

    def findings(url: str) -> Any:
        return card.load("destination")(Place("f", "http", Path("/nowhere")), card.options.model_validate({"url": url})).check()

    with Receiver() as receiver:
        (good,) = findings(receiver.url)
        wait_until(lambda: receiver.connections == 1, 60, "nobody has connected")
        assert good.ok and not receiver.arrived
    (bad,) = findings(f"http://us:pass-word@127.0.0.1:{unused_port()}/changes")
    assert not bad.ok and bad.code == "destination_unreachable" and "port" in bad.remedy
    assert "pass-word" not in f"{bad}" and "/changes" not in f"{bad}"


def test_signs_of_life_are_given_while_a_server_is_slow() -> None:
    released = threading.Event()
    signs: list[None] = []

    def sign() -> None:
        signs.append(None)
        if len(signs) >= 3:
            released.set()

    with Receiver(lambda _: reply() if released.wait(60) else None) as receiver:
        assert send(receiver, ROWS, progress=sign, timeout="50s")["rows"] == 3


def test_work_that_nobody_wants_any_more_ends_at_once() -> None:
    released = threading.Event()

    def gone() -> None:
        raise BrokenPipeError

    with Receiver(lambda _: reply() if released.wait(60) else None) as receiver:
        with pytest.raises(BrokenPipeError):
            send(receiver, [update({"id": 1, "v": 1})], progress=gone, timeout="60s")
        released.set()
