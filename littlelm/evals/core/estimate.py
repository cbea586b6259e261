"""`core_est`: an estimate of the full CORE from a part of its tokens, with its standard error.

Most of the uncertainty of CORE is in tiny tasks that cost nothing (copa, winograd), most of the tokens are in large
ones that are known well after a few hundred items (language identification, squad, hellaswag). So the tiny ones are run
whole, and of each other task as many items as serve the estimate best for their cost (Neyman's allocation). The items
that are run keep the prompts of the full run, which is why this is not max_per_task.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from littlelm.errors import UserError
from littlelm.evals.core.packs import RowTokens, plan_packs

_ACCURACY = 0.3  # assumed of every task: the plan must not depend on the model
_SAMPLE = 400  # items from which a task's cost is known well enough
_LEAST = 30  # items of a task, so that its standard error means something


def choose_items(rows: RowTokens, budget: float) -> NDArray[np.int64]:
    """The items to evaluate, ascending: about `budget` of the tokens that all of them would feed.

    The same for every model of one tokenizer and context. Of each task the first ones in the order asked, which is
    shuffled.

    Args:
        budget: share of the full evaluation's tokens, 0 < budget <= 1.

    Raises:
        UserError: the budget is no such share.
    """
    if not 0 < budget <= 1:
        raise UserError(f"budget is {budget}; it is a share of the full evaluation's tokens, above 0 and at most 1")
    prepared = rows.prepared
    bounds = prepared.task_items
    counts = np.diff(bounds)
    cost = np.array([_cost(rows, int(bounds[t]), int(bounds[t + 1]), _SAMPLE) for t in range(len(counts))])
    # Questions on one text share it in the full evaluation, and are mostly alone in a sample of it.
    shared = np.array(
        [
            cost[t] if task.shots else _cost(rows, int(bounds[t]), int(bounds[t + 1]), int(counts[t]))
            for t, task in enumerate(prepared.tasks)
        ]
    )
    deviation = np.array(
        [math.sqrt(_ACCURACY * (1 - _ACCURACY)) / (1 - task.baseline_v1 / 100) for task in prepared.tasks]
    )
    taken = allocate(counts, cost, deviation, budget * float((shared * counts).sum()))
    return np.concatenate([np.arange(first, first + count) for first, count in zip(bounds[:-1], taken, strict=True)])


def allocate(
    counts: NDArray[np.int64], cost: NDArray[np.float64], deviation: NDArray[np.float64], tokens: float
) -> NDArray[np.int64]:
    """Items of each task, at least a few and at most all, that give the mean of the tasks the smallest variance.

    The number of items is proportional to deviation / cost ** 0.5; where that is more than there are, all are taken
    and what is left is dealt out among the others.
    """
    least = np.minimum(counts, _LEAST).astype(np.float64)
    weight = deviation / np.sqrt(cost)
    low, high = 0.0, float((counts / weight).max())
    for _ in range(60):  # bisection: what is fed grows with the scale
        scale = (low + high) / 2
        taken = np.clip(scale * weight, least, counts)
        low, high = (scale, high) if float((taken * cost).sum()) <= tokens else (low, scale)
    return np.floor(np.clip(low * weight, least, counts) + 1e-9).astype(np.int64)


def _cost(rows: RowTokens, first: int, last: int, most: int) -> float:
    """Tokens fed per item of a task, sharing counted, from at most `most` of its items."""
    sample = range(first, min(last, first + most))
    return sum(pack.cost for pack in plan_packs(rows, sample, 2**14)) / len(sample)
