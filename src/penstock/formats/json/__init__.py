"""The json format: one object per change, as lines of a file or as records."""

from penstock.core.card import Card
from penstock.core.options import Options


class JsonOptions(Options):
    """The json format has no options."""


CARD = Card(
    kind="format",
    name="json",
    summary="One JSON object per change, newline-delimited in files",
    options=JsonOptions,
    parts={"format": "penstock.formats.json.format:JsonFormat"},
    capabilities={"file": True, "record": True},
)
