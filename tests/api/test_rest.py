"""REST as a program meets it: statuses, etags, keys, limits, and errors with code and remedy."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest

from penstock.api.problems import status_of
from penstock.api.serving import Serving
from penstock.api.settings import Settings, parse_listen
from penstock.control.service import Service
from penstock.errors import JournalElsewhere, JournalTrimmed, ListenRefused, StagingRefused, TableGap
from tests.api.conftest import Site
from tests.control.definitions import definition


def test_a_flow_lives_over_rest(site: Site) -> None:
    status, headers, made = site.request("POST", "/v1/flows", {"definition": definition(), "why": "a shop"})
    assert status == 201 and headers["location"] == "/v1/flows/shop" and headers["etag"] == f'"{made["etag"]}"'
    assert made["definition"] == definition() and made["state"] == "created" and made["created_by"] == "local"
    assert site.request("GET", "/v1/flows")[2]["flows"][0]["name"] == "shop"
    assert site.request("POST", "/v1/flows/shop/start", {"why": "go"})[2]["wished"] == "running"
    status, _, refused = site.request("POST", "/v1/flows/shop/resume", {})
    assert status == 200 and not refused["changed"]
    assert site.request("DELETE", "/v1/flows/shop")[0] == 409
    assert site.request("POST", "/v1/flows/shop/stop", {})[2]["wished"] == "stopped"
    assert [e["event"] for e in site.request("GET", "/v1/events?flow=shop")[2]["events"]] == [
        "created",
        "start asked for",
        "stop asked for",
    ]
    assert site.request("GET", "/v1/flows/shop/checkpoints")[2] == {"checkpoints": [], "history": []}
    assert site.request("DELETE", "/v1/flows/shop?why=over")[0] == 204
    assert site.request("GET", "/v1/flows/shop")[0] == 404


def test_a_failure_says_code_remedy_and_whether_trying_again_helps(site: Site) -> None:
    status, headers, failure = site.request("GET", "/v1/flows/nobody")
    assert (status, headers["content-type"]) == (404, "application/problem+json")
    assert failure["code"] == "flow_unknown" and failure["retry"] == "never" and failure["remedy"] and failure["status"] == 404
    sent = definition(config={"ack_policy": "quorom"}, nmae=1)
    status, _, failure = site.request("POST", "/v1/flows", {"definition": sent})
    assert status == 422 and failure["code"] == "flow_invalid"
    assert {p["path"] for p in failure["problems"]} == {"config.ack_policy", "nmae"}
    assert site.request("POST", "/v1/flows", {"definition": definition(), "strat": True})[0] == 422
    assert site.request("POST", "/v1/flows", b"{nonsense")[0] == 422
    # A caller's slip is no gateway's failure, which proxies try again.
    site.request("POST", "/v1/flows", {"definition": definition()})
    status, _, failure = site.request("POST", "/v1/flows/shop/rewind", {"destination": "log", "to": "garbage"})
    assert (status, failure["code"]) == (409, "rewind_refused")
    assert [status_of(kind("x")) for kind in (JournalTrimmed, JournalElsewhere, TableGap, StagingRefused)] == [409] * 4
    assert site.request("GET", "/nowhere")[2]["code"] == "not_found"
    assert site.request("PATCH", "/v1/flows")[0] == 405
    assert site.request("GET", "/v1/flows?labels==x")[2]["code"] == "request_refused"


def test_an_etag_guards_an_update_and_a_deletion(site: Site) -> None:
    made = site.request("POST", "/v1/flows", {"definition": definition()})[2]
    old = {"If-Match": f'"{made["etag"]}"'}
    status, headers, changed = site.request("PUT", "/v1/flows/shop", {"definition": definition(parallelism=2)}, old)
    assert status == 200 and headers["etag"] != old["If-Match"] and changed["revision"] == 2
    status, _, failure = site.request("PUT", "/v1/flows/shop", {"definition": definition(parallelism=3)}, old)
    assert (status, failure["code"]) == (412, "revision_stale")
    assert site.request("DELETE", "/v1/flows/shop", headers=old)[0] == 412
    assert site.request("DELETE", "/v1/flows/shop", headers={"If-Match": "W/x"})[0] == 400
    assert len(site.request("GET", "/v1/flows/shop/revisions")[2]["revisions"]) == 2
    assert site.request("DELETE", "/v1/flows/shop", headers={"If-Match": headers["etag"]})[0] == 204


def test_what_is_too_large_is_refused_unread(site: Site) -> None:
    status, _, failure = site.request("POST", "/v1/flows", b" " * (1 << 20) + b"{}")
    assert (status, failure["code"]) == (413, "request_refused")
    connection = http.client.HTTPConnection("127.0.0.1", site.serving.settings.port, timeout=60)
    chunks = iter([b" " * (600 << 10), b" " * (600 << 10)])
    headers = {"content-type": "application/json", "transfer-encoding": "chunked"}
    connection.request("POST", "/v1/flows", chunks, headers, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_without_a_token_health_answers_and_nothing_else(site: Site) -> None:
    token = site.request("POST", "/v1/tokens", {"name": "ann", "role": "admin"})[2]["token"]
    status, headers, failure = site.request("GET", "/v1/flows")
    assert (status, failure["code"]) == (401, "token_missing") and "Bearer" in headers["www-authenticate"]
    assert site.request("GET", "/healthz")[0] == 200 and site.request("GET", "/readyz")[0] == 200
    assert site.request("GET", "/v1/flows", headers={"authorization": f"Bearer {token}"})[0] == 200


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
def test_a_page_of_another_origin_is_refused_on_loopback(site: Site, headers: dict[str, str]) -> None:
    assert site.request("POST", "/v1/flows", {"definition": definition()}, headers)[2]["code"] == "access_denied"


def test_an_address_beyond_this_machine_needs_tokens_and_tls_or_the_word(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        with pytest.raises(ListenRefused) as refused:
            Serving(service, Settings(host="0.0.0.0", port=0))
        assert "token" in refused.value.remedy
        service.premises.ledger.tokens.create("ann", "admin", "test")
        with pytest.raises(ListenRefused) as refused:
            Serving(service, Settings(host="0.0.0.0", port=0))
        assert "--tls-cert" in refused.value.remedy
        serving = Serving(service, Settings(host="0.0.0.0", port=0, plain=True))
        serving.start()
        connection = http.client.HTTPConnection("127.0.0.1", serving.settings.port, timeout=60)
        connection.request("GET", "/v1/flows")
        assert connection.getresponse().status == 401
        connection.close()
        with pytest.raises(ListenRefused):
            Serving(service, Settings(port=serving.settings.port))
        serving.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9", ("127.0.0.1", 9)),
        ("[::1]:9", ("::1", 9)),
        ("::1", ("::1", 8466)),
        ("localhost", ("localhost", 8466)),
        (":9", ("127.0.0.1", 9)),
    ],
)
def test_an_address_to_listen_on_is_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


def test_the_document_describes_itself(site: Site) -> None:
    document = site.request("GET", "/openapi.json")[2]
    assert document["openapi"].startswith("3.1") and "Failure" in document["components"]["schemas"]
    operations = [op for path in document["paths"].values() for op in path.values()]
    assert len({op["operationId"] for op in operations}) == len(operations)
    assert all("default" in op["responses"] for op in operations)
