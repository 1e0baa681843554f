"""The difference between two inventories: what is no longer sent, what has come, and what the stream does not tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.sources.postgres.inventory import Inventory


@dataclass
class Difference:
    """What has happened between two looks, in sentences and names."""

    removed: dict[int, str] = field(default_factory=dict)
    """Tables that exist and are no longer sent."""
    narrowed: list[str] = field(default_factory=list)
    """How the publication sends less than it did, removed tables apart."""
    reloads: dict[str, str] = field(default_factory=dict)
    """Tables that the stream alone no longer keeps complete, and why."""
    dropped: list[str] = field(default_factory=list)
    joined: dict[int, str] = field(default_factory=dict)
    """Tables that are sent now and were not."""
    complete: frozenset[int] = frozenset()
    """Those of them that were made after the publication had begun to send them: nothing of them was written before."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Tables that are sent under another name than before: the old one and the new one."""

    def reload(self, name: str, why: str) -> None:
        """Notes one more reason why the table has to be loaded again."""
        self.reloads[name] = f"{self.reloads[name]}; {why}" if name in self.reloads else why


def compare(before: Inventory, now: Inventory) -> Difference:
    """What has happened from `before` to `now`."""
    found = Difference()
    _compare_settings(before, now, found)
    names = {name: oid for oid, name in now.existing.items()}
    for oid, name in before.sent.items():
        if oid in now.sent:
            _compare_rules(before, now, oid, now.sent[oid], found)
            if now.sent[oid] != name:
                found.renamed[name] = now.sent[oid]
        elif oid in now.partitions:
            root = now.sent[now.partitions[oid].root]
            found.reload(root, f"{name} was attached to it as a partition, and its rows are not in the stream")
        elif oid in now.existing:
            found.removed[oid] = name
        elif name in names:
            found.reload(name, "it was dropped and created again, and destinations still have the old table's rows")
        else:
            found.dropped.append(name)
    found.joined = {oid: name for oid, name in now.sent.items() if oid not in before.sent}
    found.complete = frozenset(
        oid
        for oid, name in found.joined.items()
        if before.existing and oid not in before.existing and oid not in now.rules and name not in found.reloads
    )
    if now.via_root and before.via_root:
        _compare_partitions(before, now, found)
    return found


def _compare_settings(before: Inventory, now: Inventory, found: Difference) -> None:
    lost = [o for o in before.operations if o not in now.operations]
    if lost:
        found.narrowed.append(f"it no longer sends {' and '.join(lost)}")
    if before.via_root and not now.via_root and any(p.root in before.sent for p in before.partitions.values()):
        found.narrowed.append("it no longer sends partitions as their root table")
    if before.publication != now.publication:
        for name in now.sent.values():
            found.reload(name, "the publication was dropped and created again, and what changed in between is not in the stream")


def _compare_rules(before: Inventory, now: Inventory, oid: int, name: str, found: Difference) -> None:
    old, new = before.rules.get(oid), now.rules.get(oid)
    if old is None or new is None or old == new or before.publication != now.publication:
        return
    if new.filter and new.filter != old.filter:
        found.narrowed.append(f"it sends only some rows of {name}")
    elif new.columns and not _contains(new.columns, old.columns):
        found.narrowed.append(f"it sends fewer columns of {name}")
    elif new.entry != old.entry:
        found.reload(name, "it was taken out of the publication and put back, and what changed in between is not in the stream")


def _contains(columns: str, before: str) -> bool:
    return bool(before) and set(before.split()) <= set(columns.split())


def _compare_partitions(before: Inventory, now: Inventory, found: Difference) -> None:
    for oid, partition in now.partitions.items():
        root = now.sent[partition.root]
        old = before.partitions.get(oid)
        if old is None and partition.is_attached and oid not in before.sent:
            found.reload(root, f"{partition.name} was attached to it as a partition, and its rows are not in the stream")
        elif old is not None and old.root != partition.root:
            found.reload(root, f"{partition.name} was moved to it from another table, and its rows are not in the stream")
    for oid, partition in before.partitions.items():
        if partition.root not in now.sent or oid in now.partitions or not partition.is_leaf:
            continue
        what = "detached from it" if oid in now.existing else "dropped"
        why = f"its partition {partition.name} was {what}, and destinations still have the partition's rows"
        found.reload(now.sent[partition.root], why)
    for oid, names in _truncated(before, now):
        found.reload(
            now.sent[oid],
            f"its partition {', '.join(names)} was truncated by itself, which the stream does not tell, and destinations still"
            " have the rows",
        )


def _truncated(before: Inventory, now: Inventory) -> Iterator[tuple[int, list[str]]]:
    """Partitions that were truncated without their root: a TRUNCATE of the root empties all of them in one transaction."""
    leaves: dict[int, list[int]] = {}
    for oid, partition in now.partitions.items():
        if partition.is_leaf:
            leaves.setdefault(partition.root, []).append(oid)
    for root, oids in leaves.items():
        known = [o for o in oids if o in before.partitions]
        hit = [o for o in known if now.partitions[o].file != before.partitions[o].file and now.partitions[o].is_empty]
        at_once = len(hit) == len(known) and len({now.partitions[o].touched for o in hit}) == 1
        if hit and not (at_once and len(hit) > 1):
            yield root, sorted(now.partitions[o].name for o in hit)
