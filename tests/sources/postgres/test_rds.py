"""Login by IAM: a stub gives the role's credentials, the AWS library signs, and a real server checks every token."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import botocore.auth
import botocore.session
import pytest
from pydantic import ValidationError

from penstock.core.secret import MASK, mask
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import ExtraMissing, SourceRefused, SourceUnreachable, TokenRefused
from penstock.sources.postgres.conninfo import Where
from penstock.sources.postgres.control import Control
from penstock.sources.postgres.options import PostgresOptions
from penstock.sources.postgres.rds import RdsIam, region_of
from penstock.sources.postgres.source import PostgresSource
from penstock.sources.postgres.wire import ReplicationConnection
from tests.conftest import Database
from tests.processes import wait_until
from tests.sources.postgres.captured import Captured

ROLE = "arn:aws:iam::123456789012:role/replicator"
NOW = datetime.datetime(2026, 5, 4, 3, 2, 1)
RDS = Where("db.abc.eu-west-1.rds.amazonaws.com", 5432, "iam", "shop")


class TokenService:
    """A stand-in for AWS's STS: every call gives other credentials, and is noted."""

    def __init__(self) -> None:
        self.calls: list[dict[str, str]] = []
        self.before_answer: Callable[[int], None] = lambda number: None
        self.refusal = ""
        self.status = 403
        service = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                service.calls.append({name: values[0] for name, values in parse_qs(body).items()})
                service.before_answer(len(service.calls))
                data = (service.refused() if service.refusal else service.granted(len(service.calls))).encode()
                self.send_response(service.status if service.refusal else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def credentials(self, number: int) -> tuple[str, str, str]:
        return f"AKIA{number:04}", f"secret-{number}", f"session-{number}"

    def granted(self, number: int) -> str:
        key, secret, token = self.credentials(number)
        return f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
        <AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken>
        <Expiration>2036-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""

    def refused(self) -> str:
        return f"""<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
        <Code>AccessDenied</Code><Message>{self.refusal}</Message></Error></ErrorResponse>"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's own credentials and no other AWS setting; a clock that stands, so that tokens can be foretold."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: NOW)


@pytest.fixture
def service() -> Iterator[TokenService]:
    made = TokenService()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture(scope="module")
def server(penstock_home: Path) -> Iterator[EmbeddedPostgres]:
    """A server that asks the role `iam` for its password in the clear, as RDS does."""
    with EmbeddedPostgres(settings={"fsync": "off"}, hba=["host all iam 127.0.0.1/32 password"]) as made:
        made.run("CREATE ROLE iam LOGIN SUPERUSER")
        yield made


@pytest.fixture
def taken(server: EmbeddedPostgres, service: TokenService) -> TokenService:
    """The server takes the token of the latest credentials, and no older one any more."""

    def accept(number: int) -> None:
        token = expected(server, *service.credentials(number))
        assert "'" not in token
        server.run(f"ALTER ROLE iam PASSWORD '{token}'")

    service.before_answer = accept
    return service


def expected(server: EmbeddedPostgres, key: str, secret: str, session_token: str | None = None) -> str:
    session = botocore.session.Session()
    session.set_credentials(key, secret, session_token)
    client = session.create_client("rds", region_name="eu-west-1")
    return str(client.generate_db_auth_token(DBHostname="127.0.0.1", Port=server.port, DBUsername="iam"))


def dsn(server: EmbeddedPostgres) -> str:
    return f"host=127.0.0.1 port={server.port} user=iam dbname=postgres sslmode=disable"


def options(server: EmbeddedPostgres, service: TokenService, **more: Any) -> dict[str, Any]:
    assumed = {"aws_role_arn": ROLE, "aws_endpoint": service.url, "aws_region": "eu-west-1"}
    return {"dsn": dsn(server), "aws_rds_iam": True, **assumed, **more}


def test_a_token_of_the_callers_own_credentials_logs_in(server: EmbeddedPostgres) -> None:
    server.run(f"ALTER ROLE iam PASSWORD '{expected(server, 'AKIAOWN', 'own-secret')}'")
    iam = RdsIam(region="eu-west-1")
    control = Control(dsn(server), "flow", iam=iam)
    assert control.user == "iam"
    control.close()
    with ReplicationConnection.connect(dsn(server), iam=iam) as connection:
        assert connection.query("SELECT current_user") == [("iam",)]


def test_a_token_of_others_is_refused_and_not_shown(server: EmbeddedPostgres) -> None:
    server.run(f"ALTER ROLE iam PASSWORD '{expected(server, 'AKIAOWN', 'another-secret')}'")
    for login in (
        lambda: Control(dsn(server), "flow", iam=RdsIam(region="eu-west-1")).user,
        lambda: ReplicationConnection.connect(dsn(server), iam=RdsIam(region="eu-west-1")),
    ):
        with pytest.raises(SourceRefused, match="iam") as caught:
            login()
        assert "X-Amz" not in repr(caught.value.to_data())


@pytest.mark.slow
def test_every_connection_has_a_token_of_its_own(server: EmbeddedPostgres, taken: TokenService) -> None:
    iam = RdsIam.of(PostgresOptions(**options(server, taken, aws_role_session_name="shop", aws_role_external_id="x-1")))
    assert iam is not None
    control = Control(dsn(server), "flow", iam=iam)
    assert control.user == control.user == "iam" and len(taken.calls) == 1
    with ReplicationConnection.connect(dsn(server), iam=iam) as connection:
        connection.query("SELECT 1")
    assert len(taken.calls) == 2
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'iam'")
    assert control.rows("SELECT 1 AS one") == [{"one": 1}]
    control.close()
    assert [(c["RoleArn"], c["RoleSessionName"], c["ExternalId"]) for c in taken.calls] == [(ROLE, "shop", "x-1")] * 3


@pytest.mark.slow
def test_a_flow_streams_and_comes_back_with_new_tokens(server: EmbeddedPostgres, taken: TokenService, tmp_path: Path) -> None:
    database = Database(server, "postgres")
    database.execute("create table t (id int primary key)")
    captured = Captured(database, tmp_path / "journal", **options(server, taken))
    for number in (1, 2):
        before = len(taken.calls)
        with captured.running():
            database.execute("insert into t values (%s)", number)
            captured.drain()
        assert len(taken.calls) > before
    assert [e["row"]["id"] for e in captured.events("t")] == [1, 2]
    database.execute("drop table t; drop publication penstock_flow")
    wait_until(lambda: database.rows("select active from pg_replication_slots") == [(False,)])
    database.execute("select pg_drop_replication_slot('penstock_flow')")


def test_the_recipe_holds_what_the_capture_needs_and_no_credentials(server: EmbeddedPostgres, taken: TokenService) -> None:
    source = PostgresSource("flow", PostgresOptions(**options(server, taken, toast_fetch="source")))
    recipe, completion = source.recipe(), source.completion()
    source.close()
    assert completion is not None and completion["iam"] == recipe["iam"]
    iam = RdsIam.from_data(recipe["iam"])
    assert iam == RdsIam(region="eu-west-1", role_arn=ROLE, endpoint=taken.url)
    assert "secret" not in repr(recipe) and "session-" not in repr(recipe)


def test_each_host_of_several_gets_its_own_token(server: EmbeddedPostgres) -> None:
    server.run(f"ALTER ROLE iam PASSWORD '{expected(server, 'AKIAOWN', 'own-secret')}'")
    both = f"host=127.0.0.1,127.0.0.1 port=1,{server.port} user=iam dbname=postgres sslmode=disable"
    control = Control(both, "flow", iam=RdsIam(region="eu-west-1"))
    assert control.user == "iam"
    control.close()
    with ReplicationConnection.connect(both, iam=RdsIam(region="eu-west-1")) as connection:
        assert connection.query("SELECT 1") == [("1",)]


def test_a_token_is_not_sent_in_the_clear_unless_asked_for(server: EmbeddedPostgres) -> None:
    plain = dsn(server).removesuffix(" sslmode=disable")
    for login in (
        lambda: Control(plain, "flow", iam=RdsIam(region="eu-west-1")).user,
        lambda: ReplicationConnection.connect(plain, iam=RdsIam(region="eu-west-1")),
    ):
        with pytest.raises(SourceRefused, match=r"TLS|SSL"):
            login()


def test_a_role_that_may_not_be_assumed_is_said_so(service: TokenService) -> None:
    service.refusal = "User is not authorized to perform: sts:AssumeRole"
    with pytest.raises(TokenRefused, match=r"AccessDenied.*not authorized") as caught:
        RdsIam(role_arn=ROLE, endpoint=service.url).mint(RDS)
    assert "aws_role_arn" in caught.value.remedy


def test_a_token_service_in_trouble_is_tried_again(service: TokenService) -> None:
    service.refusal, service.status = "come back later", 503
    with pytest.raises(SourceUnreachable, match="AccessDenied"):
        RdsIam(role_arn=ROLE, endpoint=service.url).mint(RDS)
    assert len(service.calls) > 1


def test_a_token_service_that_does_not_answer_is_tried_again() -> None:
    with pytest.raises(SourceUnreachable, match=r"AWS did not answer.*127\.0\.0\.1:1") as caught:
        RdsIam(role_arn=ROLE, endpoint="http://127.0.0.1:1").mint(RDS)
    assert caught.value.retry == "timed"


def test_missing_credentials_and_profiles_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenRefused, match="nobody"):
        RdsIam(profile="nobody").mint(RDS)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(TokenRefused, match="credentials") as caught:
        RdsIam().mint(RDS)
    assert "aws_profile" in caught.value.remedy
    source = PostgresSource("flow", PostgresOptions(dsn=f"host={RDS.host}", aws_rds_iam=True))
    assert [(f.subject, f.ok, f.code) for f in source.check()] == [("login", False, "token_refused")]


def test_a_missing_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    monkeypatch.setitem(__import__("sys").modules, "botocore.session", None)
    with pytest.raises(ExtraMissing) as caught:
        RdsIam().mint(RDS)
    assert caught.value.remedy == "Run `pip install 'penstock[aws]'`."


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("db.abc.eu-west-1.rds.amazonaws.com", "eu-west-1"),
        ("db.cluster-ro-abc.us-gov-east-1.rds.amazonaws.com", "us-gov-east-1"),
        ("db.abc.cn-north-1.rds.amazonaws.com.cn", "cn-north-1"),
        ("db.example.com", None),
    ],
)
def test_the_region_is_taken_from_the_host_name(host: str, region: str | None) -> None:
    assert region_of(host) == region


def test_the_region_comes_from_option_host_or_aws_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = RDS._replace(host="db.example.com")
    assert "/eu-west-1/rds-db/" in _scope(RdsIam().mint(RDS))
    assert "/eu-south-2/rds-db/" in _scope(RdsIam(region="eu-south-2").mint(RDS))
    with pytest.raises(TokenRefused, match="region"):
        RdsIam().mint(elsewhere)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[profile shop]\nregion=ca-west-1\naws_access_key_id=A\naws_secret_access_key=B\n")
    assert "/ca-west-1/rds-db/" in _scope(RdsIam(profile="shop").mint(elsewhere))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    assert "/us-east-2/rds-db/" in _scope(RdsIam().mint(elsewhere))


def _scope(token: str) -> str:
    return parse_qs(token.partition("?")[2])["X-Amz-Credential"][0]


def test_a_local_socket_has_no_token() -> None:
    with pytest.raises(TokenRefused, match="socket"):
        RdsIam(region="eu-west-1").mint(RDS._replace(host="/tmp"))


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        ({"aws_region": "eu-west-1"}, "aws_region", "aws_rds_iam"),
        ({"aws_role_arn": ROLE}, "aws_role_arn", "aws_rds_iam"),
        ({"aws_rds_iam": True}, "aws_region", "is needed"),
        ({"aws_rds_iam": True, "aws_region": "Ireland"}, "aws_region", "pattern"),
        ({"aws_rds_iam": True, "aws_region": "eu-west-1", "aws_role_arn": "admin"}, "aws_role_arn", "pattern"),
        ({"aws_rds_iam": True, "aws_region": "eu-west-1", "aws_endpoint": "http://x"}, "aws_endpoint", "aws_role_arn"),
        ({"aws_rds_iam": True, "aws_region": "eu-west-1", "aws_role_external_id": "xy"}, "aws_role_external_id", "aws_role_arn"),
        ({"aws_rds_iam": True, "dsn": "postgresql://u:p@h/d"}, "aws_rds_iam", "password"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(given: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PostgresOptions(**{"dsn": "host=db.example.com", **given})
    assert [(e["loc"], words in e["msg"]) for e in caught.value.errors()][:1] == [((path,), True)]


def test_a_region_that_can_be_known_need_not_be_given() -> None:
    for dsn in ("host=db.abc.eu-west-1.rds.amazonaws.com", "service=shop", "${env:SHOP_DSN}"):
        assert PostgresOptions(dsn=dsn, aws_rds_iam=True).aws_region is None


def test_a_token_in_a_text_is_masked() -> None:
    token = RdsIam(region="eu-west-1").mint(RDS)
    shown = mask(f"login with {token} failed")
    signature = parse_qs(token.partition("?")[2])["X-Amz-Signature"][0]
    assert signature in token and signature not in shown and MASK in shown
