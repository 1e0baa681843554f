"""Definitions that tests send."""

from __future__ import annotations

from typing import Any


def definition(name: str = "shop", **more: Any) -> dict[str, Any]:
    """A flow that is good, and whose secrets are references."""
    return {
        "name": name,
        "source": {"type": "postgres", "options": {"dsn": "postgresql://u:${env:SHOP_PASSWORD}@127.0.0.1:1/shop"}},
        "destinations": [{"name": "log", "type": "files", "options": {"path": f"/tmp/penstock-never-written/{name}"}}],
        **more,
    }
