"""The caller: who asks, and what that one may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from penstock.control.answers import Role
from penstock.errors import AccessDenied

_ORDER = get_args(Role)


@dataclass(frozen=True)
class Caller:
    """Somebody who asks. A viewer reads; an operator steers flows; an admin also says what flows read and write."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether the caller may do what that role may."""
        return _ORDER.index(self.role) >= _ORDER.index(role)

    def require(self, role: Role) -> None:
        """AccessDenied unless the caller may do what that role may."""
        if not self.may(role):
            raise AccessDenied(f"{self.name} is {self.role}, and this needs {role}")
