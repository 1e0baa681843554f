"""The premises: what the services of a control plane share, and the door at which every command is checked and recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from penstock.control.answers import Role
from penstock.control.caller import Caller
from penstock.core.secret import mask
from penstock.engine.places import ledger_address
from penstock.errors import LedgerError, PenstockError
from penstock.ledger.address import LedgerAddress
from penstock.ledger.leases import Leases
from penstock.ledger.ledger import Ledger

_log = structlog.get_logger()


@dataclass
class Detail:
    """What the record says besides; a command may add to it."""

    text: str | None = None


@dataclass(frozen=True)
class Premises:
    """An open ledger with its state directory."""

    state: Path
    secret_files: Sequence[Path]
    """Directories from which definitions may read secrets."""
    logs: bool = False
    """Whether what is asked is also logged: a server's log is read, a command's is in the way of its answer."""
    ledger: Ledger = field(init=False)
    leases: Leases = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ledger", Ledger(self.path))
        object.__setattr__(self, "leases", Leases(self.path))

    @property
    def path(self) -> LedgerAddress:
        """Where the ledger is."""
        return ledger_address(self.state)

    def close(self) -> None:
        """Gives back the ledger."""
        self.ledger.close()
        self.leases.close()

    @contextmanager
    def door(self, caller: Caller, action: str, flow: str | None, needs: Role) -> Iterator[Detail]:
        """Lets in who may, and records what was asked for and what became of it."""
        detail, outcome = Detail(), "done"
        try:
            caller.require(needs)
            yield detail
        except PenstockError as error:
            outcome, detail.text = error.code, error.message
            raise
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            self._record(caller, action, flow, outcome, detail)

    def _record(self, caller: Caller, action: str, flow: str | None, outcome: str, detail: Detail) -> None:
        text = mask(detail.text)[:1000] if detail.text else None
        if self.logs:
            _log.info("asked", action=action, flow=flow, who=caller.name, role=caller.role, outcome=outcome)
        try:
            self.ledger.audit.write(caller.name, caller.role, action, flow, outcome, text)
        except LedgerError as error:
            _log.error("what was asked could not be recorded", action=action, who=caller.name, reason=error.message)
