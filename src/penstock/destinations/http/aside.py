"""What is set aside: changes that the server refuses for good, and later changes of the same keys, which wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.destinations.http.request import Changes
from penstock.destinations.http.wave import Part, Wave

Name = tuple[str, str]


class Aside:
    """Refused changes of one epoch; `refused` is plain data for the receipt."""

    def __init__(self) -> None:
        self.waits = True
        """Whether later changes of a refused change's key wait, or are sent."""
        self.refused: list[dict[str, Any]] = []
        self.tables: Counter[str] = Counter()
        self._keys: dict[Name, set[str]] = {}
        self._whole: set[Name] = set()
        self._groups: set[int] = set()

    def begin(self, wave: Wave) -> None:
        """Takes up a wave: what its changes share with keys that are already parked."""
        self._groups = set()
        for part in wave.parts:
            name = (part.table.schema, part.table.name)
            if name in self._whole:
                self._groups |= set(np.unique(part.groups).tolist())
            elif keys := self._keys.get(name):
                known = pa.array(sorted(keys), part.keys[0].type)
                mine = pc.or_(*(pc.fill_null(pc.is_in(key, value_set=known), False) for key in part.keys))
                self._groups |= set(np.unique(part.groups[mine.to_numpy(zero_copy_only=False)]).tolist())

    def end(self, wave: Wave) -> None:
        """Remembers the keys that were parked during the wave."""
        if self._groups:
            for part in wave.parts:
                self._remember(part)

    def set_aside(self, wave: Wave, change: int, code: str, reason: str) -> None:
        """Lists a change as refused; what follows on its key will wait, if it is to."""
        table = wave.table(change)
        self._list(wave, change, code, reason)
        if not self.waits:
            return
        if wave.truncates[change]:
            self._whole.add((table.schema, table.name))
            self._groups |= set(np.unique(wave.parts[wave.part[change]].groups).tolist())
        elif table.key:
            self._groups.add(int(wave.groups[change]))

    def hold_back(self, wave: Wave, changes: Changes) -> Changes:
        """The changes that may be sent; those of parked keys are listed as waiting."""
        if not self._groups:
            return changes
        parked = np.isin(wave.groups[changes], _numbers(self._groups))
        if not parked.any():
            return changes
        for change in np.asarray(changes)[parked].tolist():
            self._list(wave, change, "waiting", "an earlier change of the same key was refused")
        return np.asarray(changes)[~parked]

    def _list(self, wave: Wave, change: int, code: str, reason: str) -> None:
        table = wave.table(change)
        place = {"position": int(wave.position[change]), "ordinal": int(wave.ordinal[change])}
        self.refused.append({"schema": table.schema, "table": table.name, **place, "code": code, "reason": reason})
        self.tables[table.qualified] += 1

    def _remember(self, part: Part) -> None:
        if not part.table.key:
            return
        parked = pa.array(np.isin(part.groups, _numbers(self._groups)))
        if pc.any(parked).as_py():
            found = self._keys.setdefault((part.table.schema, part.table.name), set())
            for key in part.keys:
                found |= set(key.filter(parked).drop_null().to_pylist())


def _numbers(groups: Iterable[int]) -> Any:
    return np.array(sorted(groups), np.int64)
