"""Seeded mutations of a manifest: keys deleted, copied and renamed, values swapped, numbers out of range, wrong types,
deep nesting.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2**31 - 1, 2**31, 2**53, 2**64, 0.5, -1e300, "", "S", "Q", "../x", "a" * 5000, "__proto__",
    "\x00", [], {}, [0], {"a": 1},
)  # fmt: skip
NEST = 3000


def mutations(manifest: str, seed: int) -> Iterator[dict[str, Any]]:
    """An endless sequence of copies of a manifest in JSON, each with one to three changes."""
    pick = random.Random(seed)
    while True:
        changed = json.loads(manifest)
        for _ in range(pick.choice((1, 1, 2, 3))):
            mutate(changed, pick)
        if pick.random() < 0.02:
            nest(changed, pick)
        yield changed


def mutate(manifest: dict[str, Any], pick: random.Random) -> None:
    holder = find_holder(manifest, pick)
    keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = pick.choice(keys)
    kind = pick.choice(("delete", "value", "number", "number", "number", "other", "other", "swap", "copy", "rename"))
    value = holder[key]
    if kind == "delete":
        del holder[key]
    elif kind == "value":
        holder[key] = pick.choice(VALUES)
    elif kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        holder[key] = pick.choice(
            (value + 1, value - 1, -value, value * 2, value // 2, value + 16, value + 256, 2**40, 10**30)
        )
    elif kind == "other":
        # A value of the same kind from another location.
        holder[key] = copy.deepcopy(similar(manifest, value, pick))
    elif kind == "swap":
        other = pick.choice(keys)
        holder[key], holder[other] = holder[other], value
    elif kind == "copy":
        if isinstance(holder, list):
            holder.append(copy.deepcopy(value))
        else:
            holder[f"{key}2"] = copy.deepcopy(value)
    elif isinstance(holder, dict):
        holder[pick.choice((f"{key}x", "", pick.choice(keys)))] = holder.pop(key)


def nest(manifest: dict[str, Any], pick: random.Random) -> None:
    """A value in deeply nested expressions. This is the last mutation, because such deep values cannot be copied."""
    holder = find_holder(manifest, pick)
    key: Any = pick.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    for _ in range(pick.choice((1, 5, NEST))):
        holder[key] = ["add", holder[key], 1]


def find_holder(manifest: Any, pick: random.Random) -> Any:
    """An object or list that is not empty. Large tables are not likelier than small ones."""
    holder = manifest
    while True:
        inner = [
            value
            for value in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(value, dict | list) and value
        ]
        if not inner or pick.random() < 0.15:
            return holder
        holder = pick.choice(inner)


def similar(manifest: Any, value: Any, pick: random.Random) -> Any:
    """A value of the same type, chosen by random walks from the root."""
    for _ in range(20):
        holder = find_holder(manifest, pick)
        found = pick.choice(list(holder.values() if isinstance(holder, dict) else holder))
        if type(found) is type(value):
            return found
    return value
