"""The one place that turns errors into answers: problem+json with the status, the code and the remedy of each."""

from __future__ import annotations

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from penstock.control.answers import Failure, ProblemAnswer
from penstock.control.sentences import path_of
from penstock.core.secret import mask
from penstock.errors import (
    AccessDenied,
    ConnectorUnknown,
    FlowChanged,
    FlowExists,
    FlowInvalid,
    FlowRunning,
    FlowStopped,
    FlowUnknown,
    JournalElsewhere,
    JournalTrimmed,
    KeyReused,
    LedgerError,
    LetterMissing,
    LoadMissing,
    NotFound,
    PenstockError,
    Problem,
    PublicationMissing,
    RequestRefused,
    RevisionStale,
    RewindRefused,
    SlotInUse,
    SlotMissing,
    StagingRefused,
    TableGap,
    TablesMissing,
    TokenMissing,
    TokenUnknown,
    TooManyRequests,
    TransitionRefused,
)

_log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"

_STATUS: dict[type[PenstockError], int] = {
    RequestRefused: 400,
    TokenMissing: 401,
    AccessDenied: 403,
    FlowUnknown: 404,
    LetterMissing: 404,
    ConnectorUnknown: 404,
    TokenUnknown: 404,
    NotFound: 404,
    FlowExists: 409,
    FlowRunning: 409,
    FlowStopped: 409,
    FlowChanged: 409,
    TransitionRefused: 409,
    RevisionStale: 412,
    FlowInvalid: 422,
    KeyReused: 422,
    TooManyRequests: 429,
    LoadMissing: 404,
    SlotMissing: 404,
    PublicationMissing: 404,
    TablesMissing: 404,
    SlotInUse: 409,
    RewindRefused: 409,
    JournalTrimmed: 409,
    JournalElsewhere: 409,
    TableGap: 409,
    StagingRefused: 409,
    LedgerError: 503,
}
"""The nearest class of an error decides; what the source or a destination refuses is nobody's fault here: 502."""


def refusal(error: RequestValidationError | ValidationError) -> RequestRefused:
    """What is wrong with a request, all at once."""
    found = RequestRefused("the request is not what is wanted here")
    wanted = "Correct it; /openapi.json and control.proto say what is wanted."
    found.problems = tuple(Problem(path_of(d["loc"]), str(d["msg"]), wanted) for d in error.errors())
    return found


def status_of(error: PenstockError) -> int:
    """The status that an error is answered with."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 502)


def failure_of(error: PenstockError, status: int | None = None) -> Failure:
    """An error as everybody may see it."""
    problems = error.problems if isinstance(error, FlowInvalid | RequestRefused) else ()
    return Failure(
        title=type(error).__name__,
        status=status or status_of(error),
        detail=mask(error.message),
        code=error.code,
        remedy=mask(error.remedy),
        retry=error.retry,
        problems=[ProblemAnswer(path=p.path, message=mask(p.message), remedy=mask(p.remedy)) for p in problems],
    )


def answer(error: PenstockError, status: int | None = None, headers: dict[str, str] | None = None) -> Response:
    """An error as an answer."""
    found = failure_of(error, status)
    more = dict(headers or {})
    if isinstance(error, TokenMissing):
        more["WWW-Authenticate"] = 'Bearer realm="penstock"'
    if isinstance(error, TooManyRequests):
        more["Retry-After"] = "1"
    return JSONResponse(found.model_dump(mode="json"), found.status, more, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Has every failure of the application answered so."""

    @app.exception_handler(PenstockError)
    def ours(request: Request, error: PenstockError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    def not_valid(request: Request, error: RequestValidationError) -> Response:
        return answer(refusal(error), 422)

    @app.exception_handler(HTTPException)
    def plain(request: Request, error: HTTPException) -> Response:
        kind = NotFound if error.status_code == 404 else RequestRefused
        words = {404: "there is nothing at this address", 405: "this address does not take that method"}
        text = words.get(error.status_code, "the request could not be read")
        return answer(kind(text), error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> Response:
        _log.error("a request failed unexpectedly", path=request.url.path, kind=type(error).__name__, exc_info=error)
        return answer(PenstockError("something failed that should not", remedy="The server's log has the cause."), 500)
