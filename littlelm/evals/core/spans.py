"""Which tokens of a row are scored, and what is left of a row that is too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from littlelm.errors import UserError
from littlelm.evals.core.bundle import Task

Tokens = NDArray[np.uint32]


@dataclass(frozen=True)
class Rows:
    """Token rows of one item, each beginning with BOS, and in each the scored span [start, end)."""

    tokens: list[Tokens]
    starts: list[int]
    ends: list[int]


def common_prefix(rows: Sequence[Tokens]) -> int:
    """Number of leading tokens that all rows share."""
    shortest = min(len(row) for row in rows)
    for row in rows[1:]:
        differs = np.flatnonzero(rows[0][:shortest] != row[:shortest])
        if len(differs):
            shortest = int(differs[0])
    return shortest


def common_suffix(rows: Sequence[Tokens]) -> int:
    """Number of trailing tokens that all rows share."""
    return common_prefix([row[::-1] for row in rows])


def spans_of(task: Task, rows: list[Tokens], without: Tokens | None, name: str) -> Rows:
    """Find the scored spans. `name` says which item it is in an error.

    choice: from the longest common prefix of ALL rows to the row's end, so words that the options share at their
    beginning are not scored. schema: the longest common suffix. lm: what follows the tokens of the text without it.

    Raises:
        UserError: lm: the tokens without the continuation are no prefix of those with it.
    """
    ends = [len(row) for row in rows]
    if task.type == "choice":
        return Rows(rows, [common_prefix(rows)] * len(rows), ends)
    if task.type == "schema":
        shared = common_suffix(rows)
        return Rows(rows, [end - shared for end in ends], ends)
    assert without is not None
    start = len(without)
    if start >= ends[0] or not np.array_equal(rows[0][:start], without):
        raise UserError(
            f"{name}: the tokens of the text without the continuation are not the beginning of those with it, so the "
            "continuation has no tokens of its own; end the context, or begin the continuation, at the edge of a word"
        )
    return Rows(rows, [start], ends)


def too_long(name: str, length: int, limit: int) -> UserError:
    """What policy `error` says."""
    return UserError(
        f"{name}: a row of {length:,} tokens is longer than the model's {limit:,}; policy `error` allows none: use "
        "`crop_left` (which loses examples and says how many) or a longer context"
    )


def span_cut(name: str, scored: int, limit: int) -> UserError:
    """What is said when a cut would reach into what is scored."""
    return UserError(
        f"{name}: what is scored ({scored:,} tokens) does not fit into {limit:,} tokens with one before it; "
        "use a model with a longer context, or leave the task out"
    )
