"""The application: routes, failures, limits, and the document that describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from penstock import __version__
from penstock.api import backfills, catalog, flows, health, histories, letters, problems, source_objects, upkeep, watch
from penstock.api.limits import MOST_SLOW, BodyLimit, Room, Watchers
from penstock.api.settings import Settings
from penstock.control.answers import Failure, ProblemAnswer
from penstock.control.service import Service

Runs = Callable[[], tuple[str | None, str | None]]
"""How this server runs flows, if it does, and what its Spark does."""


def create_app(
    service: Service,
    settings: Settings,
    runs: Runs = lambda: (None, None),
    watchers: Watchers | None = None,
    slow: Room | None = None,
) -> FastAPI:
    """The application over a service layer; `watchers` and `slow` are shared with other faces of the same server."""
    failed: dict[str, Any] = {
        "description": "Why it failed, with a code and what to do.",
        "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Failure"}}},
    }
    app = FastAPI(
        title="penstock",
        version=__version__,
        summary="Change data capture on Apache Spark.",
        responses={"default": failed},
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    app.state.service, app.state.settings, app.state.runs = service, settings, runs
    app.state.watchers = watchers or Watchers(settings.most_watchers)
    app.state.slow = slow or Room(MOST_SLOW)
    problems.install(app)
    for room in (health, flows, histories, upkeep, letters, backfills, source_objects, catalog, watch):
        app.include_router(room.router)
    app.add_middleware(BodyLimit)
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        # Every operation refers to them, and none returns one.
        schemas = document["components"]["schemas"]
        for model in (Failure, ProblemAnswer):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schema.pop("$defs", None)
            schemas.setdefault(model.__name__, schema)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app
