"""The one place that turns errors into gRPC statuses: the code, the remedy and every problem are in the details."""

from __future__ import annotations

from typing import Any

from google.protobuf.any_pb2 import Any as Packed
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode
from grpc_status.rpc_status import to_status

from penstock.api.problems import failure_of, status_of
from penstock.errors import FlowExists, PenstockError
from penstock.rpc import control_pb2

DOMAIN = "penstock"
_CODES = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.FAILED_PRECONDITION,
    412: StatusCode.ABORTED,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    500: StatusCode.INTERNAL,
    503: StatusCode.UNAVAILABLE,
}


def code_of(error: PenstockError, status: int | None = None) -> StatusCode:
    """The status code for an error that REST answers with that status."""
    if isinstance(error, FlowExists):
        return StatusCode.ALREADY_EXISTS
    # What the source or a destination refuses (502) is for somebody to mend, unless time does.
    other = StatusCode.UNAVAILABLE if error.retry == "timed" else StatusCode.FAILED_PRECONDITION
    return _CODES.get(status or status_of(error), other)


def status(error: PenstockError, http: int | None = None) -> Any:
    """An error as the status of a call; `http` is what REST would answer with, where the error does not say."""
    found = failure_of(error, http)
    about = {"detail": found.detail, "code": found.code, "remedy": found.remedy, "retry": found.retry}
    problems = [control_pb2.Problem(**p.model_dump()) for p in found.problems]
    details = [
        ErrorInfo(reason=found.code, domain=DOMAIN, metadata={"remedy": found.remedy, "retry": found.retry}),
        control_pb2.Failure(**about, problems=problems),
    ]
    code: Any = code_of(error, http)
    made = Status(code=code.value[0], message=f"{found.detail} → {found.remedy}")
    for detail in details:
        packed = Packed()
        packed.Pack(detail)
        made.details.append(packed)
    return to_status(made)
