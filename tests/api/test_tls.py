"""TLS with a certificate of an authority of one's own: who trusts it is served over REST and gRPC, who does not refuses."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.api.grpc.serving import GrpcServing
from penstock.api.serving import Serving
from penstock.api.settings import Settings
from penstock.cli.app import run
from penstock.client import Client
from penstock.control.service import Service
from penstock.errors import ListenRefused, ServerUnreachable
from tests.control.definitions import definition


@dataclass
class Guarded:
    """A server with TLS that others than this machine reach, and the token that it demands."""

    urls: dict[str, str]
    token: str
    authority: Path


def issue(directory: Path) -> tuple[Path, Path, Path]:
    """An authority, and a certificate of it for 127.0.0.1 with its key."""
    now = dt.datetime.now(dt.UTC)
    own, served = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())

    def certificate(name: str, key: ec.EllipticCurvePrivateKey, *extensions: tuple[x509.ExtensionType, bool]) -> x509.Certificate:
        builder = x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - dt.timedelta(hours=1),
            not_valid_after=now + dt.timedelta(hours=1),
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(own, hashes.SHA256())

    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = {
        "ca.pem": certificate("authority", own, (x509.BasicConstraints(ca=True, path_length=None), True)),
        "server.pem": certificate("server", served, (place, False)),
    }
    for name, one in made.items():
        (directory / name).write_bytes(one.public_bytes(serialization.Encoding.PEM))
    key = served.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "server.key").write_bytes(key)
    return directory / "ca.pem", directory / "server.pem", directory / "server.key"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("tls")
    authority, certificate, key = issue(directory)
    with Service(directory / "state") as service:
        _, token = service.premises.ledger.tokens.create("ann", "admin", "test")
        settings = Settings(host="0.0.0.0", port=0, certificate=certificate, key=key)
        rest, grpc = Serving(service, settings), GrpcServing(service, settings)
        rest.start()
        grpc.start()
        try:
            urls = {"rest": rest.url, "grpc": grpc.url}
            assert urls["rest"].startswith("https://") and urls["grpc"].startswith("grpcs://")
            yield Guarded({k: url.replace("0.0.0.0", "127.0.0.1") for k, url in urls.items()}, token, authority)
        finally:
            rest.close()
            grpc.close()


@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_who_trusts_the_authority_is_served_and_nobody_else(guarded: Guarded, transport: str) -> None:
    url = guarded.urls[transport]
    with Client(url, guarded.token, ca_file=str(guarded.authority)) as client:
        assert client.create_flow(definition(transport)).created_by == "ann"
    for address in (url, url.replace("https", "http").replace("grpcs", "grpc")):
        with pytest.raises(ServerUnreachable), Client(address, guarded.token, timeout=10) as client:
            client.flows()
    with pytest.raises(ServerUnreachable) as refused, Client(url, ca_file="/nowhere/ca.pem") as client:
        client.flows()
    assert "/nowhere/ca.pem" in refused.value.message
    # Good for its address, and for no other name of the same machine.
    other = url.replace("127.0.0.1", "localhost")
    with pytest.raises(ServerUnreachable), Client(other, guarded.token, timeout=10, ca_file=str(guarded.authority)) as client:
        client.flows()


def test_a_key_that_is_no_key_is_refused_at_the_start(tmp_path: Path) -> None:
    _, certificate, _ = issue(tmp_path)
    (tmp_path / "other.key").write_text("no key")
    with Service(tmp_path / "state") as service, pytest.raises(ListenRefused):
        GrpcServing(service, Settings(port=0, certificate=certificate, key=tmp_path / "other.key"))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_a_profile_names_server_token_and_authority(
    guarded: Guarded, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_SERVER", raising=False)
    (tmp_path / "ca.pem").write_bytes(guarded.authority.read_bytes())
    (tmp_path / "token").write_text(f"{guarded.token}\n")
    url, config = guarded.urls[transport], tmp_path / "config.yaml"
    good = {"server": url, "token": f"${{file:{tmp_path}/token}}", "ca_file": "ca.pem"}
    plain = {**good, "token": guarded.token}
    config.write_text(json.dumps({"profiles": {"prod": good, "plain": plain, "bare": {"server": url, "ca_file": "ca.pem"}}}))

    def shown(*words: str, code: int = 0) -> str:
        assert run(list(words)) == code, capsys.readouterr()
        found = capsys.readouterr()
        return found.out + found.err

    assert "ann" in shown("token", "list", "--profile", "prod")
    assert "ann" in shown("--profile=prod", "token", "list")
    assert "profile_refused" in shown("token", "list", "--profile", "nobody", code=1)
    assert "token_missing" in shown("token", "list", "--profile", "bare", code=1)
    config.chmod(0o644)
    assert "chmod 600" in shown("token", "list", "--profile", "plain", code=1)
    config.chmod(0o600)
    assert "ann" in shown("token", "list", "--profile", "plain")
    with monkeypatch.context() as elsewhere:
        # What the environment has for another server is not for this one, not even where it would do.
        elsewhere.setenv("PENSTOCK_SERVER", "https://127.0.0.1:1")
        elsewhere.setenv("PENSTOCK_CA_FILE", "/nowhere/ca.pem")
        elsewhere.setenv("PENSTOCK_TOKEN", "another")
        assert "ann" in shown("token", "list", "--profile", "prod")
        elsewhere.setenv("PENSTOCK_TOKEN", guarded.token)
        assert "token_missing" in shown("token", "list", "--profile", "bare", code=1)
    # A profile's token is for its own server and no other.
    other = next(there for name, there in guarded.urls.items() if name != transport)
    with monkeypatch.context() as trusting:
        trusting.setenv("PENSTOCK_CA_FILE", str(tmp_path / "ca.pem"))
        assert "token_missing" in shown("token", "list", "--profile", "prod", "--server", other, code=1)
    # Without a profile the state directory is asked, unless the file chooses one; one that is named is meant.
    assert "ann" not in shown("token", "list")
    config.write_text(json.dumps({"profile": "prod", "profiles": {"prod": good}}))
    assert "ann" in shown("token", "list") and "ann" not in shown("token", "list", "--state", str(tmp_path / "other"))
    config.write_text("profiles: [1]")
    assert "profile_refused" in shown("token", "list", code=1)
