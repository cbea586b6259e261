"""Which items are asked, and which examples each is shown: fixed by seeds, so that everybody asks the same.

The examples are drawn from the possibly shortened list: `max_per_task` changes every prompt, not only their number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from littlelm.errors import UserError

_T = TypeVar("_T")
SHUFFLE_SEED = 1337
SHOTS_SEED = 1234


def shuffled(items: Sequence[_T], max_per_task: int | None = None) -> list[_T]:
    """Items in the order in which they are asked; the first `max_per_task` of them."""
    ordered = list(items)
    random.Random(SHUFFLE_SEED).shuffle(ordered)
    return ordered if max_per_task is None else ordered[:max_per_task]


def shots_of(index: int, count: int, shots: int) -> list[int]:
    """Positions of the examples shown before item `index` of `count`, in the order shown; never itself.

    Equal to `random.Random(1234 + index).sample([i for i in range(count) if i != index], shots)`: which positions
    are drawn depends only on how many there are, so the list is never built (it would be quadratic in `count`).
    """
    drawn = random.Random(SHOTS_SEED + index).sample(range(count - 1), shots)
    return [position + (position >= index) for position in drawn]


def check_enough(label: str, count: int, shots: int, max_per_task: int | None) -> None:
    """Raise UserError when a task has too few items to show `shots` others before each."""
    if count > shots:
        return
    if max_per_task is not None and max_per_task <= shots:
        raise UserError(
            f"{label}: max_per_task is {max_per_task}, but each item is shown {shots} others first, drawn from the "
            f"shortened list: it needs {shots + 1} items at least; raise max_per_task"
        )
    raise UserError(f"{label}: has {count} items, but each is shown {shots} others first: it needs {shots + 1}")
