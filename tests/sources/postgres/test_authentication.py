"""Each way of proving who we are, against a server that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import SourceRefused
from penstock.sources.postgres.wire import ReplicationConnection

METHODS = {"trusting": "trust", "clear": "password", "hashed": "md5", "scrammed": "scram-sha-256", "rejected": "reject"}
PASSWORDS = {"clear": "päss wörd", "hashed": "h:a'sh\\", "scrammed": "I\u00adX ª \U0001f642"}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    rules = [f"host all {user} 127.0.0.1/32 {method}" for user, method in METHODS.items()]
    with EmbeddedPostgres(settings={"fsync": "off"}, hba=rules) as server:
        for user in METHODS:
            kind = "md5" if user == "hashed" else "scram-sha-256"
            password = PASSWORDS.get(user, "unused").replace("'", "''")
            server.run(f"CREATE ROLE {user} LOGIN REPLICATION")
            server.run(f"SET password_encryption = '{kind}'; ALTER ROLE {user} PASSWORD '{password}'")
        yield server


def login(server: EmbeddedPostgres, user: str, **extra: str) -> str:
    extra.setdefault("password", PASSWORDS.get(user, ""))
    connection = ReplicationConnection.connect(server.dsn(user=user, **extra))
    name = connection.query("SELECT current_user")[0][0]
    connection.end()
    assert name
    return name


@pytest.mark.parametrize("user", ["trusting", "clear", "hashed", "scrammed"])
def test_right_password_is_accepted(server: EmbeddedPostgres, user: str) -> None:
    assert login(server, user) == user


@pytest.mark.parametrize("user", ["clear", "hashed", "scrammed"])
def test_wrong_password_is_refused_by_name_and_without_showing_it(server: EmbeddedPostgres, user: str) -> None:
    with pytest.raises(SourceRefused) as caught:
        login(server, user, password="open sesame")
    assert user in caught.value.message
    assert f"127.0.0.1:{server.port}" in caught.value.message
    assert caught.value.facts["sqlstate"] == "28P01"
    assert "sesame" not in repr(caught.value.to_data())


@pytest.mark.parametrize("user", ["clear", "hashed", "scrammed"])
def test_missing_password_is_said_to_be_missing(server: EmbeddedPostgres, user: str) -> None:
    with pytest.raises(SourceRefused, match="none is given"):
        login(server, user, password="")


def test_rejection_by_rule_tells_the_rule_to_add(server: EmbeddedPostgres) -> None:
    with pytest.raises(SourceRefused) as caught:
        login(server, "rejected")
    assert "pg_hba.conf" in caught.value.remedy
    assert "rejected" in caught.value.remedy


@pytest.mark.parametrize(
    ("user", "allowed"),
    [
        ("scrammed", "scram-sha-256"),
        ("scrammed", "md5,scram-sha-256"),
        ("scrammed", "!password,!none"),
        ("hashed", "md5"),
        ("clear", "password"),
        ("trusting", "none"),
        ("trusting", "!md5"),
    ],
)
def test_require_auth_lets_the_listed_methods_pass(server: EmbeddedPostgres, user: str, allowed: str) -> None:
    assert login(server, user, require_auth=allowed) == user


@pytest.mark.parametrize(
    ("user", "allowed"),
    [
        ("scrammed", "md5"),
        ("hashed", "scram-sha-256"),
        ("clear", "!password"),
        ("clear", "scram-sha-256,none"),
        ("trusting", "scram-sha-256"),
        ("trusting", "!none"),
    ],
)
def test_require_auth_stops_before_the_password_is_sent(server: EmbeddedPostgres, user: str, allowed: str) -> None:
    with pytest.raises(SourceRefused, match="require_auth"):
        login(server, user, require_auth=allowed)


@pytest.mark.parametrize("value", ["kerberos", "md5,!password", "md5,"])
def test_require_auth_that_makes_no_sense_is_refused(server: EmbeddedPostgres, value: str) -> None:
    with pytest.raises(SourceRefused, match="require_auth"):
        login(server, "trusting", require_auth=value)


@pytest.mark.parametrize("user", ["trusting", "clear", "hashed", "scrammed"])
def test_channel_binding_cannot_be_had_without_tls(server: EmbeddedPostgres, user: str) -> None:
    with pytest.raises(SourceRefused, match="channel binding"):
        login(server, user, channel_binding="require")


def test_password_file_serves_the_login(
    server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path_factory.mktemp("pass") / "pgpass"
    path.write_text(f"127.0.0.1:{server.port}:postgres:scrammed:{PASSWORDS['scrammed']}\n")
    path.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(path))
    assert login(server, "scrammed", password="") == "scrammed"


def test_few_iterations_are_refused_with_the_setting_to_change(server: EmbeddedPostgres) -> None:
    server.run("CREATE ROLE hasty LOGIN REPLICATION")
    server.run("SET scram_iterations = 1000; ALTER ROLE hasty PASSWORD 'x'")
    with pytest.raises(SourceRefused) as caught:
        login(server, "hasty", password="x")
    assert "scram_iterations" in caught.value.remedy
