"""From losses to decisions, from decisions to accuracies, from accuracies to CORE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class TokenScores:
    """What a model says of every scored token of some rows.

    Args:
        rows: (k,) int64, the rows.
        at: (k + 1,) int64, where each row's tokens lie in the arrays below.
        losses: fp32, nats.
        right: whether the token is the likeliest.
        gap: fp32, its logit minus the largest other one; NaN where nobody asks (only `lm` does).
    """

    rows: NDArray[np.int64]
    at: NDArray[np.int64]
    losses: NDArray[np.float32]
    right: NDArray[np.bool_]
    gap: NDArray[np.float32]

    @staticmethod
    def join(parts: Sequence[TokenScores]) -> TokenScores:
        """All rows of some parts, sorted by row."""
        rows = np.concatenate([part.rows for part in parts])
        lengths = np.concatenate([np.diff(part.at) for part in parts])
        begins = np.cumsum(lengths) - lengths
        order = np.argsort(rows, kind="stable")
        at = np.concatenate(([0], np.cumsum(lengths[order])))
        # Position in the joined arrays -> position in the parts one after the other.
        source = np.repeat(begins[order] - at[:-1], lengths[order]) + np.arange(at[-1])
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])[source] for name in ("losses", "right", "gap")
        }
        return TokenScores(rows=rows[order], at=at, **joined)

    def of(self, position: int) -> slice:
        """Where the tokens of the row at a position lie."""
        return slice(int(self.at[position]), int(self.at[position + 1]))


@dataclass(frozen=True)
class Decision:
    """What an item came to.

    Args:
        chosen: the option taken (choice, schema); for lm 0.
        correct: whether that is right.
        losses: mean loss of each option, nats a token; NaN for an empty span.
        tie: whether another option has the very same loss as the chosen one.
        nan: whether an option's span is empty.
        margin: how far from another decision: nats a token, for lm the smallest gap of logits; NaN when undefined.
    """

    chosen: int
    correct: bool
    losses: list[float]
    tie: bool
    nan: bool
    margin: float


def mean_loss(losses: NDArray[np.float32]) -> float:
    """Mean over a span, in float64; NaN for an empty one."""
    return float(np.mean(losses, dtype=np.float64)) if len(losses) else math.nan


def decide_options(losses: list[float], gold: int) -> Decision:
    """The option of the smallest mean loss, the first on ties.

    With NaN among them it is what Python's `list.index(min(list))` gives, as in the reference: a NaN wins when it
    comes first and is ignored otherwise.
    """
    least = min(losses)
    chosen = losses.index(least)
    others = sorted(loss for number, loss in enumerate(losses) if number != chosen and not math.isnan(loss))
    margin = others[0] - least if others else math.nan
    return Decision(chosen, chosen == gold, losses, losses.count(least) > 1, any(map(math.isnan, losses)), margin)


def decide_tokens(losses: NDArray[np.float32], right: NDArray[np.bool_], gap: NDArray[np.float32]) -> Decision:
    """lm: right when every token is the likeliest one. The margin is the smallest gap: at it, the decision flips."""
    correct = bool(right.all())
    return Decision(0, correct, [mean_loss(losses)], False, False, abs(float(gap.min())))


def centred(accuracy: float, baseline_percent: float) -> float:
    """(accuracy - b) / (1 - b): 0 is guessing, 1 is perfect. baseline_percent: accuracy of guessing, percent."""
    baseline = baseline_percent / 100
    return (accuracy - baseline) / (1 - baseline)


def accuracy_error(correct: NDArray[np.bool_]) -> float:
    """Standard error of a mean of 0/1 values, from the sample (n - 1); NaN for fewer than two."""
    count = len(correct)
    if count < 2:
        return math.nan
    accuracy = float(correct.mean())
    return math.sqrt(accuracy * (1 - accuracy) / (count - 1))


def mean_error(errors: Sequence[float]) -> float:
    """Standard error of the unweighted mean of independent quantities."""
    return math.sqrt(sum(error * error for error in errors)) / len(errors)


def clustered_error(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> float:
    """Standard error of a mean whose items come in clusters (questions on one text), which are independent.

    Sum over clusters of the squared sum of deviations (Miller 2024, arXiv:2411.00640, section 2.2), with the usual
    correction for few clusters; NaN for fewer than two.
    """
    names, index = np.unique(clusters, return_inverse=True)
    if len(names) < 2:
        return math.nan
    sums = np.bincount(index, weights=values - values.mean())
    return math.sqrt(float((sums**2).sum()) * len(names) / (len(names) - 1)) / len(values)


def as_record(decision: Decision) -> dict[str, Any]:
    """Its fields, for a table."""
    return dict(decision.__dict__)
