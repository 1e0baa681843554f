"""The policy for values that a column's type cannot hold: refused, or NULL and counted."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from penstock.core.batch import Batch
from penstock.errors import ValueUnrepresentable

Policy = Literal["fail", "null"]


def settle(batch: Batch, policy: Policy, nulled: Counter[str], *, before: bool = True) -> None:
    """Adds to `nulled`, by table, the values that stand as NULL because their type cannot hold them.

    ValueUnrepresentable when none may. A key must never become NULL, whatever the policy: two rows would become one.
    `before` false leaves old rows of updates out, for destinations that do not write them.
    """
    for column, odd in [*batch.odd.items(), *(batch.before_odd.items() if before else ())]:
        count = len(odd.rows)
        if count and (policy == "fail" or column in batch.table.key):
            raise _refused(batch, column, count)
        if count:
            nulled[batch.table.qualified] += count


def _refused(batch: Batch, column: str, count: int) -> ValueUnrepresentable:
    native = next((c.native for c in batch.table.columns if c.name == column), "")
    in_key = column in batch.table.key
    return ValueUnrepresentable(
        f"{batch.table.qualified}: {count} value(s) of column {column} ({native}) do not fit its type at the destination",
        remedy="The column is part of the key: exclude the table, or correct the rows." if in_key else None,
        table=batch.table.qualified,
        column=column,
        count=count,
    )
