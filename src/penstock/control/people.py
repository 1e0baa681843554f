"""The service of people: tokens, and the record of who asked for what."""

from __future__ import annotations

from typing import Any

from penstock.control.answers import AuditAnswer, AuditPage, TokenAnswer, TokenList, TokenMade
from penstock.control.caller import Caller
from penstock.control.flows import moment
from penstock.control.premises import Premises
from penstock.control.requests import TokenCreation
from penstock.ledger.tokens import Token

MOST = 500


class People:
    """Who may do what, and who has done what."""

    def __init__(self, premises: Premises) -> None:
        self._premises = premises

    def caller(self, text: str) -> Caller | None:
        """Whose token it is; None when it is nobody's."""
        token = self._premises.ledger.tokens.match(text)
        return Caller(token.name, token.role) if token is not None else None  # type: ignore[arg-type]

    def need_tokens(self) -> bool:
        """Whether everybody needs a token, because there was one; those that were revoked count."""
        return self._premises.ledger.tokens.are_there()

    def create(self, caller: Caller, creation: TokenCreation) -> TokenMade:
        """A new token, whose text is told this once."""
        with self._premises.door(caller, "token.create", None, "admin") as detail:
            token, text = self._premises.ledger.tokens.create(creation.name, creation.role, caller.name)
            detail.text = f"{token.id}, {token.role}, for {token.name}"
        return TokenMade.model_validate({**_data(token), "token": text})

    def all(self, caller: Caller) -> TokenList:
        """Every token, without its text."""
        caller.require("admin")
        return TokenList(tokens=[TokenAnswer.model_validate(_data(token)) for token in self._premises.ledger.tokens.all()])

    def revoke(self, caller: Caller, number: str) -> None:
        """Makes a token worthless. TokenUnknown."""
        with self._premises.door(caller, "token.revoke", None, "admin") as detail:
            detail.text = number
            self._premises.ledger.tokens.revoke(number)

    def audit(self, caller: Caller, *, before: int | None = None, limit: int = 100, flow: str | None = None) -> AuditPage:
        """The newest records before that one."""
        caller.require("admin")
        limit = max(1, min(limit, MOST))
        found = self._premises.ledger.audit.page(before, limit + 1, flow)
        records = [AuditAnswer.model_validate({**vars(r), "at": moment(r.at)}) for r in found[:limit]]
        return AuditPage(records=records, next=records[-1].id if len(found) > limit else None)


def _data(token: Token) -> dict[str, Any]:
    ended = moment(token.revoked_at) if token.revoked_at is not None else None
    return {**vars(token), "created_at": moment(token.created_at), "revoked_at": ended}
