"""The policy for values that a column's type cannot hold: refused, or NULL and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.core.batch import Batch, Odd, Op
from penstock.destinations.aside import Aside, Fault
from penstock.errors import ValueUnrepresentable

Policy = Literal["fail", "null"]


def settle(
    batch: Batch,
    policy: Policy,
    nulled: Counter[str],
    *,
    before: bool = True,
    aside: Aside | None = None,
    original: Batch | None = None,
) -> Batch:
    """The batch with nothing in it that the policy refuses; adds to `nulled`, by table, the values that stand as NULL.

    What is refused goes to `aside`, as it stands in `original` where that is another batch of the same rows; without
    `aside`, ValueUnrepresentable. A key must never become NULL, whatever the policy: two rows would become one. `before`
    false leaves old rows out, for destinations that do not write them.
    """
    faults = []
    for column, rows in _strange(batch, before):
        if policy == "fail" or column in batch.table.key:
            error = _refused(batch, column, int(rows.sum()))
            if aside is None:
                raise error
            faults.append(
                Fault(rows, error.code, f"the value of column {column} ({_native(batch, column)}) does not fit its type")
            )
    if faults and aside is not None:
        batch = batch.filter(pa.array(aside.refuse(original or batch, faults)))
    if nulls := sum(int(rows.sum()) for _, rows in _strange(batch, before)):
        nulled[batch.table.qualified] += nulls
    return batch


def _strange(batch: Batch, before: bool) -> Iterator[tuple[str, Any]]:
    """Columns with values that their type cannot hold, and in which rows; an old row matters by its key, or with `before`."""
    for column, odd in batch.odd.items():
        rows = _marked(odd, len(batch))
        if not before and column not in batch.table.key:
            op = batch.op.to_numpy(zero_copy_only=False)
            rows &= (op != Op.DELETE) & (op != Op.LEAVE)
        if rows.any():
            yield column, rows
    for column, odd in batch.before_odd.items() if before else ():
        if len(odd.rows):
            yield column, _marked(odd, len(batch))


def _marked(odd: Odd, count: int) -> Any:
    marks = np.zeros(count, np.bool_)
    marks[odd.rows.to_numpy(zero_copy_only=False)] = True
    return marks


def _native(batch: Batch, column: str) -> str:
    return next((c.native for c in batch.table.columns if c.name == column), "")


def _refused(batch: Batch, column: str, count: int) -> ValueUnrepresentable:
    in_key = column in batch.table.key
    return ValueUnrepresentable(
        f"{batch.table.qualified}: {count} value(s) of column {column} ({_native(batch, column)})"
        " do not fit its type at the destination",
        remedy="The column is part of the key: exclude the table, or correct the rows." if in_key else None,
        table=batch.table.qualified,
        column=column,
        count=count,
    )
