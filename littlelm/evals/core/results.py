"""What an evaluation came to: by item, by task, in all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm.evals.core.cuts import Cuts
from littlelm.evals.core.packs import Pack, RowTokens
from littlelm.evals.core.prepared import PreparedRows
from littlelm.evals.core.scores import Decision, accuracy_error, centred, clustered_error, mean_error

NEAR = 0.01
"""A margin under this (nats, or logits for lm) may be decided otherwise by rounding in bf16."""


@dataclass(frozen=True)
class TaskResult:
    """One task.

    Args:
        n: items evaluated; of: items of the task.
        error, clustered_error: standard errors of the accuracy, the second with items on one text as one draw.
        centred, centred_error: by version of the baselines, (v1, v2).
        near: items whose margin is under `NEAR`.
        text_cut: items of whose own text something is cut.
        shots_lost_mean, shots_lost_max: examples cut off a row, whole or in part.
        tokens_fed, tokens_naive: tokens computed, and what feeding every row whole would compute.
        seconds: of computing, of all processes together.
    """

    label: str
    type: str
    shots: int
    n: int
    of: int
    accuracy: float
    error: float
    clustered_error: float
    baseline: tuple[float, float]
    centred: tuple[float, float]
    centred_error: tuple[float, float]
    nan: int
    ties: int
    near: int
    rows: int
    rows_cut: int
    shots_lost_mean: float
    shots_lost_max: int
    text_cut: int
    bos_dropped: int
    tokens_fed: int
    tokens_naive: int
    seconds: float


@dataclass
class CoreResult:
    """A whole evaluation.

    Args:
        settings: what must be equal for two results to be compared, and what was evaluated.
        tasks: by task.
        records: columns of the table of items.
        core, core_error: by version of the baselines: the unweighted mean over the tasks, and its standard error.
        flips: bound on how far CORE v1 moves if every item of a margin under `NEAR` were decided otherwise.
        seconds: `prepare`, `plan`, `evaluate`.
    """

    settings: dict[str, Any]
    tasks: list[TaskResult]
    records: dict[str, list[Any]]
    core: tuple[float, float]
    core_error: tuple[float, float]
    flips: float
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`CORE`, or what it is when it is only a part: an estimate of it, or some of its tasks."""
        return "core_est" if self.settings.get("budget") is not None else "core"


def summarise(
    prepared: PreparedRows,
    cuts: Cuts,
    rows: RowTokens,
    items: NDArray[np.int64],
    decisions: dict[int, Decision],
    costs: dict[int, tuple[int, float]],
    settings: dict[str, Any],
) -> CoreResult:
    """Put decisions together.

    Args:
        items: the items evaluated, ascending.
        decisions: of each of them.
        costs: by task, (tokens computed, seconds).
    """
    records = _records(prepared, cuts, items, decisions)
    tasks = []
    item_task = prepared.item_task[items]
    estimated = settings.get("budget") is not None
    for number, task in enumerate(prepared.tasks):
        theirs = items[item_task == number]
        if len(theirs) == 0:
            continue
        made = [decisions[int(item)] for item in theirs]
        correct = np.array([decision.correct for decision in made])
        of = int(prepared.task_items[number + 1] - prepared.task_items[number])
        accuracy, error = float(correct.mean()), accuracy_error(correct)
        if estimated:  # of the whole task's accuracy: what was drawn is a part of a finite whole
            error = error * math.sqrt(1 - len(theirs) / of) if len(theirs) < of else 0.0
        baselines = (task.baseline_v1, task.baseline_v2)
        rows_of_task = np.concatenate(
            [np.arange(prepared.item_rows[item], prepared.item_rows[item + 1]) for item in theirs]
        )
        tasks.append(
            TaskResult(
                label=task.label,
                type=task.type,
                shots=task.shots,
                n=len(theirs),
                of=of,
                accuracy=accuracy,
                error=error,
                clustered_error=clustered_error(correct.astype(np.float64), prepared.cluster[theirs]),
                baseline=baselines,
                centred=(centred(accuracy, baselines[0]), centred(accuracy, baselines[1])),
                centred_error=(error / (1 - baselines[0] / 100), error / (1 - baselines[1] / 100)),
                nan=sum(decision.nan for decision in made),
                ties=sum(decision.tie for decision in made),
                near=sum(decision.margin < NEAR for decision in made),
                rows=len(rows_of_task),
                rows_cut=int((cuts.crop[rows_of_task] > 0).sum()),
                shots_lost_mean=float(cuts.shots_lost[rows_of_task].mean()),
                shots_lost_max=int(cuts.shots_lost[rows_of_task].max()),
                text_cut=len(np.unique(rows.row_item[rows_of_task][cuts.text_cut[rows_of_task]])),
                bos_dropped=int((cuts.crop[rows_of_task] > 0).sum()),
                tokens_fed=costs.get(number, (0, 0.0))[0],
                tokens_naive=int(rows.length[rows_of_task].sum()),
                seconds=costs.get(number, (0, 0.0))[1],
            )
        )
    return CoreResult(
        settings=settings,
        tasks=tasks,
        records=records,
        core=(_mean(tasks, 0), _mean(tasks, 1)),
        core_error=(
            mean_error([task.centred_error[0] for task in tasks]),
            mean_error([task.centred_error[1] for task in tasks]),
        ),
        flips=sum(task.near / task.n / (1 - task.baseline[0] / 100) for task in tasks) / len(tasks),
    )


def _mean(tasks: list[TaskResult], version: int) -> float:
    return sum(task.centred[version] for task in tasks) / len(tasks)


def _records(
    prepared: PreparedRows, cuts: Cuts, items: NDArray[np.int64], decisions: dict[int, Decision]
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "task", "item", "line", "cluster", "gold", "chosen", "correct", "margin", "tie", "nan", "losses",
            "tokens_cut", "shots_lost", "text_cut",
        )
    }  # fmt: skip
    item_task = prepared.item_task
    for item in items.tolist():
        task = int(item_task[item])
        rows = slice(int(prepared.item_rows[item]), int(prepared.item_rows[item + 1]))
        decision = decisions[item]
        columns["task"].append(prepared.tasks[task].label)
        columns["item"].append(item - int(prepared.task_items[task]))
        columns["line"].append(int(prepared.file_index[item]) + 1)
        columns["cluster"].append(int(prepared.cluster[item]))
        columns["gold"].append(int(prepared.gold[item]))
        for name in ("chosen", "correct", "margin", "tie", "nan", "losses"):
            columns[name].append(getattr(decision, name))
        columns["tokens_cut"].append(int(cuts.crop[rows].max()))
        columns["shots_lost"].append(int(cuts.shots_lost[rows].max()))
        columns["text_cut"].append(bool(cuts.text_cut[rows].any()))
    return columns


def costs_by_task(
    prepared: PreparedRows, rows: RowTokens, packs: list[Pack], seconds: dict[int, float]
) -> dict[int, tuple[int, float]]:
    """Task -> (tokens computed, padding included; seconds): a pack's are dealt out by what each family feeds."""
    item_task = prepared.item_task
    fed: dict[int, float] = {}
    spent: dict[int, float] = {}
    for number, pack in enumerate(packs):
        for family in pack.families:
            task = int(item_task[rows.row_item[family.fed[0]]])
            cost = family.prefix + len(family.fed) * pack.tail
            fed[task] = fed.get(task, 0) + cost
            spent[task] = spent.get(task, 0.0) + seconds.get(number, 0.0) * cost / pack.cost
    return {task: (int(tokens), spent[task]) for task, tokens in fed.items()}
