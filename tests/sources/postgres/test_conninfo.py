"""What a dsn means, against libpq's documented rules."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from penstock.errors import SourceRefused
from penstock.sources.postgres.conninfo import DEFAULT_TIMEOUT, resolve
from penstock.sources.postgres.passfile import password_for


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "dsn",
    [
        "host=a,b port=1,2 user=u dbname=d",
        "postgresql://u@a:1,b:2/d",
        "postgres://a:1,b:2/d?user=u",
    ],
)
def test_keyword_and_uri_forms_name_the_same_hosts(dsn: str) -> None:
    info = resolve(dsn)
    assert [(host.name, host.port) for host in info.hosts] == [("a", 1), ("b", 2)]
    assert (info.user, info.database) == ("u", "d")


def test_one_port_serves_all_hosts() -> None:
    assert [host.port for host in resolve("host=a,b,c port=6000").hosts] == [6000] * 3


def test_an_empty_port_means_the_default() -> None:
    assert [host.port for host in resolve("host=a,b port=,6000").hosts] == [5432, 6000]


def test_percent_encoding_is_undone() -> None:
    info = resolve("postgresql://us%40er:p%3Aw%20d@%2Ftmp%2Fsockets/my%2Fdb")
    assert (info.user, info.database, info.value("password")) == ("us@er", "my/db", "p:w d")
    assert info.hosts[0].is_local


def test_hostaddr_is_connected_to_and_host_is_the_name() -> None:
    host = resolve("host=db.example hostaddr=10.0.0.1").hosts[0]
    assert (host.target, host.name) == ("10.0.0.1", "db.example")


def test_without_any_host_a_socket_directory_is_used() -> None:
    assert resolve("").hosts[0].is_local


def test_user_and_database_default_to_the_account() -> None:
    account = pwd.getpwuid(os.geteuid()).pw_name
    info = resolve("host=a")
    assert (info.user, info.database) == (account, account)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=a,b port=1,2,3",
        "host=a port=70000",
        "host=a port=x",
        "host=a,b hostaddr=1.2.3.4",
        "service=nowhere",
    ],
)
def test_contradictions_are_refused(dsn: str) -> None:
    with pytest.raises(SourceRefused) as caught:
        resolve(dsn)
    assert caught.value.remedy


@pytest.mark.parametrize("dsn", ["host=a password=open sesame", "postgresql://u:open@sesame@:x", "host=a password='sesame"])
def test_an_unreadable_dsn_is_refused_without_being_quoted(dsn: str) -> None:
    with pytest.raises(SourceRefused) as caught:
        resolve(dsn)
    assert "sesame" not in f"{caught.value} {caught.value.remedy}"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(("text", "seconds"), [("connect_timeout=7", 7.0), ("", DEFAULT_TIMEOUT), ("connect_timeout=0", None)])
def test_connect_timeout_bounds_each_attempt(text: str, seconds: float | None) -> None:
    assert resolve(f"host=a {text}").timeout == seconds


def test_environment_fills_what_the_dsn_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "from-environment")
    monkeypatch.setenv("PGUSER", "somebody")
    monkeypatch.setenv("PGPORT", "6543")
    info = resolve("user=me")
    assert (info.hosts[0].name, info.hosts[0].port, info.user) == ("from-environment", 6543, "me")


def test_system_roots_mean_verify_full_unless_a_mode_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("sslrootcert=system").value("sslmode") == "verify-full"
    assert resolve("sslrootcert=system sslmode=require").value("sslmode") == "require"
    assert resolve("").value("sslmode") == "prefer"
    monkeypatch.setenv("PGSSLROOTCERT", "system")
    assert resolve("").value("sslmode") == "verify-full"


def test_service_stands_between_dsn_and_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".pg_service.conf").write_text(
        "# comment\n[other]\nhost=wrong\n\n[shop]\nhost=db.example\nport=6000\nuser=cdc\n[last]\nhost=wrong\n"
    )
    monkeypatch.setenv("PGUSER", "environment")
    monkeypatch.setenv("PGDATABASE", "environment")
    info = resolve("service=shop port=7000")
    assert (info.hosts[0].name, info.hosts[0].port, info.user, info.database) == ("db.example", 7000, "cdc", "environment")
    monkeypatch.setenv("PGSERVICE", "shop")
    assert resolve("").hosts[0].name == "db.example"


def test_service_file_can_lie_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "mine.conf").write_text("[shop]\nhost=elsewhere\n")
    monkeypatch.setenv("PGSERVICEFILE", str(home / "mine.conf"))
    assert resolve("service=shop").hosts[0].name == "elsewhere"


def test_service_file_of_the_system_is_the_second_choice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "pg_service.conf").write_text("[shop]\nhost=system\n")
    monkeypatch.setenv("PGSYSCONFDIR", str(home))
    assert resolve("service=shop").hosts[0].name == "system"


@pytest.mark.parametrize("line", ["nonsense", "no_such_option=1", "service=nested"])
def test_service_file_with_a_strange_line_is_refused(home: Path, line: str) -> None:
    (home / ".pg_service.conf").write_text(f"[shop]\n{line}\n")
    with pytest.raises(SourceRefused, match="shop"):
        resolve("service=shop")


def passfile(home: Path, text: str, mode: int = 0o600) -> None:
    path = home / ".pgpass"
    path.write_text(text)
    path.chmod(mode)


def found(dsn: str) -> str | None:
    info = resolve(dsn)
    return password_for(info, info.hosts[0])


@pytest.mark.parametrize(
    ("line", "password"),
    [
        ("db:5432:shop:cdc:secret", "secret"),
        ("*:*:*:*:secret", "secret"),
        (r"db:5432:shop:cdc:se\:cr\\et", r"se:cr\et"),
        ("db:5432:shop:cdc:secret:ignored", "secret"),
        ("db:5433:shop:cdc:secret", None),
        ("db:5432:other:cdc:secret", None),
        ("#db:5432:shop:cdc:secret", None),
        ("db:5432:shop:cdc", None),
        ("db:5432:shop:cdc:no\ndb:5432:shop:cdc:second", "no"),
        ("other:*:*:*:no\n*:*:shop:*:yes", "yes"),
    ],
)
def test_password_file_is_read_as_libpq_reads_it(home: Path, line: str, password: str | None) -> None:
    passfile(home, line + "\n")
    assert found("host=db dbname=shop user=cdc") == password


def test_password_file_field_can_escape_a_colon(home: Path) -> None:
    passfile(home, r"\:\:1:5432:shop:cd\\c:secret")
    assert found(r"host=::1 dbname=shop user=cd\\c") == "secret"


def test_password_file_calls_a_default_socket_localhost(home: Path) -> None:
    passfile(home, "localhost:5432:shop:cdc:secret")
    assert found("host=/var/run/postgresql dbname=shop user=cdc") == "secret"
    assert found("host=/elsewhere dbname=shop user=cdc") is None


def test_password_file_open_to_others_is_not_used(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    passfile(home, "*:*:*:*:secret", mode=0o640)
    assert found("host=db user=cdc") is None
    assert "0600" in caplog.text
    assert "secret" not in caplog.text


def test_password_comes_from_dsn_then_environment_then_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passfile(home, "*:*:*:*:file")
    assert found("host=db") == "file"
    monkeypatch.setenv("PGPASSWORD", "environment")
    assert found("host=db") == "environment"
    assert found("host=db password=dsn") == "dsn"


def test_password_file_is_asked_for_each_host(home: Path) -> None:
    passfile(home, "a:*:*:*:one\nb:*:*:*:two")
    info = resolve("host=a,b user=cdc")
    assert [password_for(info, host) for host in info.hosts] == ["one", "two"]


def test_passfile_option_names_another_file(home: Path) -> None:
    (home / "other").write_text("*:*:*:*:other")
    (home / "other").chmod(0o600)
    assert found(f"host=db passfile={home / 'other'}") == "other"
