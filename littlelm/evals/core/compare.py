"""Two results on the same items: paired differences, which are far smaller than each result's own error.

Items that both models get right, or both wrong, say nothing about the difference: the standard error is of the
differences item by item, with items on one text (questions on one story) taken as one draw. McNemar's exact test, by
task, asks whether A wins against B more often than a coin would; Holm's correction keeps the chance of a single false
alarm among all tasks at 5 %.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from littlelm.errors import UserError
from littlelm.evals.core.results import CoreResult
from littlelm.evals.core.scores import clustered_error, mean_error

_MUST_EQUAL = {
    "bundle_fingerprint": "the bundle",
    "max_per_task": "max_per_task (it changes every prompt)",
    "budget": "budget",
    "policy": "the truncation policy",
    "baselines": "the version of the baselines",
}
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class TaskComparison:
    """One task: B minus A.

    Args:
        n: items compared; of: items of both results.
        accuracy: of A and of B on these items.
        difference, error: of the accuracy, B - A, and its standard error, clustered.
        only_a, only_b: items that only A, only B has right.
        p, p_holm: of McNemar's exact test, and corrected for the number of tasks.
    """

    label: str
    n: int
    of: int
    accuracy: tuple[float, float]
    difference: float
    error: float
    centred: tuple[float, float]
    centred_error: tuple[float, float]
    only_a: int
    only_b: int
    p: float
    p_holm: float


@dataclass(frozen=True)
class Comparison:
    """Two results; `difference` and `error` are of CORE by version of the baselines, B - A."""

    tasks: list[TaskComparison]
    difference: tuple[float, float]
    error: tuple[float, float]
    untruncated: bool
    limits: tuple[int | None, int | None]
    left_out: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def differences(first: CoreResult, second: CoreResult) -> list[str]:
    """Why two results cannot be compared, one reason a line; none when they can."""
    reasons = []
    for key, meaning in _MUST_EQUAL.items():
        one, other = first.settings.get(key), second.settings.get(key)
        if one != other:
            shown = "" if key == "bundle_fingerprint" else f": {one} and {other}"
            reasons.append(f"{meaning} differs{shown}")
    baselines = {task.label: task.baseline for task in first.tasks}
    for task in second.tasks:
        if baselines.get(task.label, task.baseline) != task.baseline:
            reasons.append(f"the baseline of {task.label} differs: {baselines[task.label]} and {task.baseline}")
    return reasons


def compare(first: CoreResult, second: CoreResult, untruncated: bool = False) -> Comparison:
    """Compare B = `second` with A = `first`, item by item.

    Args:
        untruncated: only items none of whose rows is cut in either.

    Raises:
        UserError: they were not made alike, or have no items in common.
    """
    reasons = differences(first, second)
    if reasons:
        raise UserError(
            "these results cannot be compared: " + "; ".join(reasons) + ". Evaluate one again like the other"
        )
    ours, theirs = _by_item(first), _by_item(second)
    tasks, left_out = [], []
    for task in first.tasks:
        items = [key for key in ours if key[0] == task.label and key in theirs]
        kept = [key for key in items if not untruncated or (ours[key][2] == 0 and theirs[key][2] == 0)]
        if not kept:
            left_out.append(task.label)
            continue
        a = np.array([ours[key][0] for key in kept], dtype=np.float64)
        b = np.array([theirs[key][0] for key in kept], dtype=np.float64)
        clusters = np.array([ours[key][1] for key in kept])
        scale = tuple(1 - baseline / 100 for baseline in task.baseline)
        difference, error = float((b - a).mean()), clustered_error(b - a, clusters)
        only_a, only_b = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
        tasks.append(
            TaskComparison(
                label=task.label,
                n=len(kept),
                of=len(items),
                accuracy=(float(a.mean()), float(b.mean())),
                difference=difference,
                error=error,
                centred=(difference / scale[0], difference / scale[1]),
                centred_error=(error / scale[0], error / scale[1]),
                only_a=only_a,
                only_b=only_b,
                p=mcnemar(only_a, only_b),
                p_holm=math.nan,
            )
        )
    if not tasks:
        which = "items that are cut in neither" if untruncated else "items"
        raise UserError(f"these results have no {which} in common")
    corrected = holm(np.array([task.p for task in tasks]))
    tasks = [TaskComparison(**{**asdict(task), "p_holm": float(p)}) for task, p in zip(tasks, corrected, strict=True)]
    return Comparison(
        tasks=tasks,
        difference=(_mean([task.centred[0] for task in tasks]), _mean([task.centred[1] for task in tasks])),
        error=(
            mean_error([task.centred_error[0] for task in tasks]),
            mean_error([task.centred_error[1] for task in tasks]),
        ),
        untruncated=untruncated,
        limits=(first.settings.get("limit"), second.settings.get("limit")),
        left_out=left_out,
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p-value (McNemar 1947): of so many disagreements, this split or a more extreme one by a coin."""
    count, fewer = only_a + only_b, min(only_a, only_b)
    if count == 0:
        return 1.0
    tail = term = 1  # whole numbers: the sum of the first binomial coefficients
    for k in range(fewer):
        term = term * (count - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << count))


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """p-values corrected for their number (Holm 1979): the smallest times n, the next times n - 1, never falling."""
    order = np.argsort(p, kind="stable")
    scaled = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(scaled)
    return corrected


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _by_item(result: CoreResult) -> dict[tuple[str, int], tuple[bool, int, int]]:
    """(task, place in the file) -> (correct, cluster, tokens cut)."""
    records = result.records
    keys = zip(records["task"], records["line"], strict=True)
    values = zip(records["correct"], records["cluster"], records["tokens_cut"], strict=True)
    return dict(zip(keys, values, strict=True))


def comparison_table(comparison: Comparison) -> Table:
    """By task."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    header = ("task", "items", "A", "B", "B - A", "±", "only A right", "only B right", "p", "p (Holm)", "")
    for column, name in enumerate(header):
        table.add_column(name, justify="left" if column == 0 else "right", no_wrap=True)
    for task in comparison.tasks:
        n = f"{task.n:,}" if task.n == task.of else f"{task.n:,} of {task.of:,}"
        mark = ("B better" if task.difference > 0 else "A better") if task.p_holm < SIGNIFICANT else ""
        error = "" if math.isnan(task.error) else f"{task.error:.4f}"
        table.add_row(
            task.label, n, f"{task.accuracy[0]:.4f}", f"{task.accuracy[1]:.4f}", f"{task.difference:+.4f}", error,
            f"{task.only_a:,}", f"{task.only_b:,}", f"{task.p:.3g}", f"{task.p_holm:.3g}", mark,
        )  # fmt: skip
    return table


def comparison_lines(comparison: Comparison) -> list[str]:
    """What the whole says, one a line."""
    lines = []
    for number, version in enumerate(("v1", "v2")):
        difference, error = comparison.difference[number], comparison.error[number]
        part = ""
        if not math.isnan(error) and error > 0:
            part = f" ± {error:.4f} ({abs(difference) / error:.1f} standard errors)"
        lines.append(f"CORE {version}, B - A: {difference:+.4f}{part}")
    lines.append(
        "The error is of the items alone. Two runs of one recipe differ by about .006 from their seeds: a difference "
        "under .015 between two runs is no evidence about a recipe."
    )
    if comparison.limits[0] != comparison.limits[1] and not comparison.untruncated:
        lines.append(
            f"A was given {comparison.limits[0]} tokens at most and B {comparison.limits[1]}: examples cut off may be "
            "all of the difference; `--untruncated` compares the items that are cut in neither."
        )
    if comparison.left_out:
        lines.append(f"Without {', '.join(comparison.left_out)}: no items to compare.")
    return lines
