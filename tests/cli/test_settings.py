"""`penstock config`: a flag counts before the environment, that before the file, and that before the default."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.app import run
from penstock.cli.files import running_flow
from penstock.cli.settings import SETTINGS, from_file, from_flags
from penstock.control.embedding import EmbeddedLauncher
from penstock.engine.session import SparkHost
from penstock.errors import SparkMasterRefused
from tests.control.definitions import definition


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of a home that nobody else has."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    return tmp_path / "config.yaml"


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[Any, str]]:
    capsys.readouterr()
    assert run(["config", "--json"]) == 0
    return {s["name"]: (s["value"], s["origin"]) for s in json.loads(capsys.readouterr().out)["settings"]}


def test_a_setting_is_shown_with_its_origin_and_secrets_are_not(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(capsys)["http_listen"] == (None, "default")
    file.write_text("settings: {http_listen: '127.0.0.1:1', grpc_reflection: true, database_url: 'postgresql://u:hush@h/d'}")
    found = shown(capsys)
    assert found["http_listen"] == ("127.0.0.1:1", "file") and found["grpc_reflection"] == ("true", "file")
    assert found["database_url"] == ("***", "file") and found["home"][1] == "environment"
    monkeypatch.setenv("PENSTOCK_HTTP_LISTEN", "127.0.0.1:2")
    assert shown(capsys)["http_listen"] == ("127.0.0.1:2", "environment")
    assert run(["config"]) == 0
    assert "hush" not in capsys.readouterr().out


SECRETS = {
    "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net": "{}==",
    "spark.hadoop.fs.azure.sas.box.shop.blob.core.windows.net": "?sv=1&sig={}",
    "spark.hadoop.fs.s3a.secret.key": "{}",
    "spark.hadoop.fs.s3a.bucket.shop.session.token": "{}",
    "spark.hadoop.javax.jdo.option.ConnectionPassword": "{}",
    "spark.ssl.keyPassword": "{}",
    "spark.driver.extraJavaOptions": "-Xmx1g -Dx.password={} -Dssl.keyStorePassword='{} {}' -Daws.secretKey={}= -Dx.k=v",
    "spark.executor.extraJavaOptions": '-Dfs.azure.account.key.shop.dfs.core.windows.net={}== -Dpwd="{}"',
    "spark.shop.jdbc": "jdbc:postgresql://u:{}@h/d",
    "spark.shop.postgres": "jdbc:postgresql://h/d?user=u&password={}&ssl=true",
    "spark.shop.sqlserver": "jdbc:sqlserver://h:1433;user=u;password={{{};{}}};encrypt=true",
    "spark.shop.bus": "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={}=",
    "spark.shop.dsn": "host=h password='{} {}' dbname=d",
}


@pytest.mark.parametrize("way", ["file", "environment", "capitals"])
@pytest.mark.parametrize("name", SECRETS)
def test_no_shape_of_a_secret_in_a_property_of_spark_is_shown(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    value = SECRETS[name].format(*["h7sh"] * 4)
    if way == "file":
        file.write_text(yaml.safe_dump({"settings": {"spark_conf": {name: value}}}))
    else:
        monkeypatch.setenv(f"PENSTOCK_SPARK_CONF_{name if way == 'environment' else name.replace('.', '_').upper()}", value)
    for words in (["config"], ["config", "--json"]):
        assert run(words) == 0
        said = capsys.readouterr().out
        assert "h7sh" not in said and "***" in said


def test_what_is_no_secret_is_shown_whole(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {
        "spark.driver.extraJavaOptions": "-Xmx1g -Dlog4j2.level=info -Dkeyspace=shop -Dbasic.signal=1",
        "spark.sql.keywords": "a,b",
        "spark.ssl.keyStore": "/etc/store",
        "spark.jars": "s3a://bucket/a.jar,https://h/b.jar?v=1&x=2",
    }
    file.write_text(yaml.safe_dump({"settings": {"spark_conf": plain}}))
    monkeypatch.setenv("PENSTOCK_SERVER", "https://ann:h7sh@h:1")
    found = shown(capsys)
    assert {name: found[f"spark_conf.{name}"][0] for name in plain} == plain
    assert found["server"] == ("https://ann:****@h:1", "environment")


def test_a_setting_of_the_file_acts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("settings: {http_listen: 'localhost:many'}")
    assert run(["up"]) == 1
    assert "'localhost:many' is no address to listen on" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["settings: {htp_listen: x}", "settings: {server: x}", "settings: [x]", "settings: {: :"])
def test_what_is_no_setting_of_a_file_is_refused(file: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    file.write_text(text)
    assert run(["config"]) == 1
    assert "profile_refused" in capsys.readouterr().err


def test_spark_and_formats_are_set_by_flag_before_environment_before_file(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("spark_master", "wire_format", "wire_enforce")
    assert {shown(capsys)[name] for name in names} == {(None, "default")}
    file.write_text(
        "settings: {spark_master: 'local[3]', wire_format: json, wire_enforce: true,"
        " spark_conf: {spark.driver.memory: 1g, spark.ui.enabled: false, spark.my.password: hush}}"
    )
    found = shown(capsys)
    assert [found[name] for name in names] == [("local[3]", "file"), ("json", "file"), ("true", "file")]
    assert found["spark_conf.spark.driver.memory"] == ("1g", "file") and found["spark_conf.spark.my.password"] == ("***", "file")
    monkeypatch.setenv("PENSTOCK_SPARK_MASTER", "local[4]")
    monkeypatch.setenv("PENSTOCK_SPARK_CONF_SPARK_DRIVER_MEMORY", "2g")
    found = shown(capsys)
    assert found["spark_master"] == ("local[4]", "environment")
    assert found["spark_conf.spark.driver.memory"] == ("2g", "environment")
    with from_file():
        host = SparkHost(file.parent)
        flags: dict[str, str | bool | None] = {"spark_master": "local[5]", "spark_conf.spark.driver.memory": "3g"}
        with from_flags(**flags, wire_enforce=True):
            other = SparkHost(file.parent)
        after = SparkHost(file.parent)
    assert (host.master, host._conf["spark.driver.memory"], host._conf["spark.ui.enabled"]) == ("local[4]", "2g", "false")
    assert (other.master, other._conf["spark.driver.memory"]) == ("local[5]", "3g")
    assert (after.master, after._conf) == (host.master, host._conf) and "PENSTOCK_WIRE_FORMAT" not in os.environ
    assert EmbeddedLauncher(file.parent).host.master == "local[4]"


CLUSTERS = (
    "spark://127.0.0.1:7077",
    "yarn",
    "k8s://https://h:6443",
    "local-cluster[2,1,512]",
    "local[0]",
    "localhost",
    "local[2",
)


@pytest.mark.parametrize("master", CLUSTERS)
@pytest.mark.parametrize("way", ["flag", "property", "setting", "variable", "file"])
def test_a_master_on_which_no_lane_can_work_is_refused_before_anything_starts(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, master: str, way: str
) -> None:
    words = {"flag": ["--spark-master", master], "property": ["--spark-conf", f"spark.master={master}"]}.get(way, [])
    if way == "setting":
        monkeypatch.setenv("PENSTOCK_SPARK_MASTER", master)
    elif way == "variable":
        monkeypatch.setenv("PENSTOCK_SPARK_CONF_SPARK_MASTER", master)
    elif way == "file":
        file.write_text(yaml.safe_dump({"settings": {"spark_conf": {"spark.master": master}, "spark_master": "local[3]"}}))
    for command in (["worker", "--flow", "shop"], ["up"], ["server"]):
        assert run([*command, *words, "--state", str(file.parent / "state")]) == 1
        said = capsys.readouterr().err
        assert "spark_master_refused" in said and master in said and "local[64,1000]" in said
    assert not (file.parent / "state").exists()
    if way in ("setting", "variable"):
        with pytest.raises(SparkMasterRefused):
            SparkHost(file.parent)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[64,1000]", "local[*, 4]"])
def test_a_property_s_local_master_is_the_one_that_counts(file: Path, master: str) -> None:
    host = SparkHost(file.parent, "local[3]", {"spark.master": master})
    assert host.master == master == host._properties(file.parent, file.parent, [])["spark.master"]
    assert SparkHost(file.parent, master).master == master


def test_a_property_of_spark_has_a_name_and_a_value(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("driver.memory=1g", "spark.driver.memory"):
        assert run(["worker", "--flow", "shop", "--spark-conf", word]) == 2
        assert "is no property" in capsys.readouterr().err


def test_the_wire_format_is_inherited_or_enforced(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = file.parent / "shop.yaml"
    words = ["worker", "--flow", str(flow), "--state", str(file.parent)]
    own = {"name": "own", "type": "files", "options": {"path": "/tmp/penstock-never-written/own", "format": "parquet"}}
    monkeypatch.setenv("SHOP_PASSWORD", "hush")
    sent = definition(wire_format="json")
    flow.write_text(yaml.safe_dump({**sent, "destinations": [*sent["destinations"], own]}))
    assert run(["flow", "validate", str(flow)]) == 0
    capsys.readouterr()
    assert run([*words, "--wire-enforce"]) == 2
    said = capsys.readouterr().err
    assert "destinations[1].options.format" in said and "which PENSTOCK_WIRE_ENFORCE has every destination use" in said
    # Where the flow names no format, the setting does.
    flow.write_text(yaml.safe_dump(definition()))
    file.write_text("settings: {wire_format: json}")
    with from_file():
        assert running_flow(flow).destinations[0].options["format"] == "json"
    file.write_text("settings: {wire_format: jsn}")
    assert run(["flow", "validate", str(flow)]) == 2 and "there is no format named 'jsn'" in capsys.readouterr().out
