"""gRPC as a program in another language meets it: statuses with details, health, reflection, and code that fits the proto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status.rpc_status import from_call

import penstock
from penstock.api.grpc.health import MOST_HEALTH
from penstock.api.grpc.operations import operations
from penstock.api.grpc.serving import GrpcServing
from penstock.api.settings import Settings
from penstock.client.routes import ROUTES
from penstock.control.service import Service
from penstock.errors import ListenRefused
from penstock.rpc import control_pb2
from penstock.rpc.messages import methods, pack, unpack
from tests.api.conftest import Site
from tests.control.definitions import definition


def refused(site: Site, call: str, message: object, **metadata: str) -> tuple[grpc.StatusCode, ErrorInfo, control_pb2.Failure]:
    """The status code and the details of a call that fails."""
    with grpc.insecure_channel(f"127.0.0.1:{site.grpc.settings.port}") as channel:
        ask: Any = channel.unary_unary(f"/penstock.v1.{call}", request_serializer=lambda m: m.SerializeToString())
        with pytest.raises(grpc.RpcError) as error:
            ask(message, timeout=30, metadata=list(metadata.items()))
    status = from_call(error.value)
    info, failure = ErrorInfo(), control_pb2.Failure()
    assert status.details[0].Unpack(info) and status.details[1].Unpack(failure)
    return error.value.code(), info, failure


def test_a_status_says_code_remedy_and_whether_trying_again_helps(site: Site) -> None:
    code, info, failure = refused(site, "Flows/Get", control_pb2.FlowName(name="nobody"))
    assert code is grpc.StatusCode.NOT_FOUND and info.reason == failure.code == "flow_unknown" and info.domain == "penstock"
    assert failure.retry == info.metadata["retry"] == "never" and failure.remedy == info.metadata["remedy"]
    kind = control_pb2.CreateFlow.DESCRIPTOR
    code, _, failure = refused(site, "Flows/Create", pack(kind, {"definition": definition(nmae=1)}))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and [p.path for p in failure.problems] == ["nmae"]
    with site.client("grpc") as client:
        made = client.create_flow(definition())
    code, *_ = refused(site, "Flows/Create", pack(kind, {"definition": definition()}))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    stale = {"name": "shop", "etag": "0-1", "definition": definition()}
    code, *_ = refused(site, "Flows/Update", pack(control_pb2.UpdateFlow.DESCRIPTOR, stale))
    assert code is grpc.StatusCode.ABORTED and made.etag != "0-1"
    code, *_ = refused(site, "Flows/Pause", control_pb2.Steer(name="shop"))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    code, *_ = refused(site, "Flows/List", control_pb2.ListFlows(), origin="https://evil.example")
    assert code is grpc.StatusCode.PERMISSION_DENIED
    code, *_ = refused(site, "Flows/List", control_pb2.ListFlows(), authorization="Bearer nobody's")
    assert code is grpc.StatusCode.UNAUTHENTICATED


def test_health_needs_no_token_and_reflection_does(site: Site) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{site.grpc.settings.port}") as channel:
        known = ProtoReflectionDescriptorDatabase(channel)
        assert {"penstock.v1.Flows", "penstock.v1.Events", "grpc.health.v1.Health"} <= set(known.get_services())
        assert known.FindFileContainingSymbol("penstock.v1.Flows").package == "penstock.v1"
    site.service.premises.ledger.tokens.create("ann", "admin", "test")
    with grpc.insecure_channel(f"127.0.0.1:{site.grpc.settings.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "penstock.v1.Flows"):
            found = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
            assert found.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as error:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_health_is_watched_by_few_and_says_when_the_ledger_is_away(site: Site) -> None:
    asked = health_pb2.HealthCheckRequest(service="penstock.v1.Flows")
    with grpc.insecure_channel(f"127.0.0.1:{site.grpc.settings.port}") as channel:
        streams = [health_pb2_grpc.HealthStub(channel).Watch(asked, timeout=60) for _ in range(MOST_HEALTH)]
        assert {next(stream).status for stream in streams} == {health_pb2.HealthCheckResponse.SERVING}
        with pytest.raises(grpc.RpcError) as error:
            next(health_pb2_grpc.HealthStub(channel).Watch(asked, timeout=30))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        database = site.service.premises.ledger.lifecycle._database
        with database.transaction() as c:
            c.exec_driver_sql("alter table flow_events rename to elsewhere")
        assert next(streams[0]).status == health_pb2.HealthCheckResponse.NOT_SERVING
        for stream in streams:
            stream.cancel()


def test_an_address_beyond_this_machine_needs_tokens_and_tls_or_the_word(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        with pytest.raises(ListenRefused) as refused:
            GrpcServing(service, Settings(host="0.0.0.0", port=0))
        assert "token" in refused.value.remedy
        service.premises.ledger.tokens.create("ann", "admin", "test")
        with pytest.raises(ListenRefused) as refused:
            GrpcServing(service, Settings(host="0.0.0.0", port=0))
        assert "--tls-cert" in refused.value.remedy
        serving = GrpcServing(service, Settings(host="0.0.0.0", port=0, plain=True))
        serving.start()
        try:
            with pytest.raises(ListenRefused):
                GrpcServing(service, Settings(host="0.0.0.0", port=serving.settings.port, plain=True))
        finally:
            serving.close()


def test_every_method_is_answered_and_has_a_route() -> None:
    names = {name for name, _ in methods()}
    assert names == set(ROUTES) == {*operations(lambda: (None, None)), "Events.Watch"}


def test_the_generated_code_fits_the_proto_file(tmp_path: Path) -> None:
    source = Path(penstock.__file__).parent.parent
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(source), f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, str(source / "penstock/rpc/control.proto")], check=True)
    for name in ("control_pb2.py", "control_pb2.pyi"):
        made, kept = (tmp_path / "penstock/rpc" / name).read_text(), (source / "penstock/rpc" / name).read_text()
        assert made == kept, "`make proto` writes it anew"


def test_what_a_message_carries_comes_back_as_it_was() -> None:
    sent = {"name": "shop", "definition": {"a": 1, "b": [1.5, None, {"c": True}], "big": 2**60}, "etag": "x"}
    found = unpack(pack(control_pb2.UpdateFlow.DESCRIPTOR, sent))
    assert found == {**sent, "why": None, "definition": {"a": 1, "b": [1.5, None, {"c": True}], "big": str(2**60)}}
    letter = {"id": 1, "key": {"id": 2**60}, "change": {"after": {"n": 2**60}}, "unrepresentable": {"v": None}}
    found = unpack(pack(control_pb2.Letter.DESCRIPTOR, letter))
    assert {name: found[name] for name in letter} == letter
