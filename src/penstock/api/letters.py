"""Dead letters over REST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from penstock.api.access import Asking, Serving
from penstock.api.flows import FlowName
from penstock.control.answers import LetterPage, LettersDone, LetterWhole
from penstock.control.letter_service import MOST
from penstock.control.requests import LetterChoice

router = APIRouter(prefix="/v1/flows/{name}/dead-letters", tags=["dead letters"])

Number = Annotated[int, Path(ge=1, le=2**53)]
Word = Annotated[str | None, Query(max_length=255, pattern=r"^[^\x00]*$")]


@router.get("", operation_id="listDeadLetters")
def page(
    asking: Asking,
    serving: Serving,
    name: FlowName,
    destination: Word = None,
    table: Word = None,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
) -> LetterPage:
    """The changes that are set aside, by number, page by page."""
    return serving.letters.page(asking, name, destination=destination, table=table, after=after, limit=limit)


@router.get("/{number}", operation_id="getDeadLetter")
def find(asking: Asking, serving: Serving, name: FlowName, number: Number) -> LetterWhole:
    """One letter with its change, values included; for operators."""
    return serving.letters.find(asking, name, number)


@router.post("/replay", operation_id="replayDeadLetters")
def replay(asking: Asking, serving: Serving, name: FlowName, choice: LetterChoice) -> LettersDone:
    """Deliver letters again with the worker's next epoch."""
    return serving.letters.replay(asking, name, choice)


@router.post("/discard", operation_id="discardDeadLetters")
def discard(asking: Asking, serving: Serving, name: FlowName, choice: LetterChoice) -> LettersDone:
    """Remove letters for good: their changes never reach the destination."""
    return serving.letters.discard(asking, name, choice)
