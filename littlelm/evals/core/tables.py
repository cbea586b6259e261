"""Results in the terminal."""

from __future__ import annotations

import math

from rich.table import Table

from littlelm.evals.core.results import NEAR, CoreResult
from littlelm.units import duration, human


def result_table(result: CoreResult) -> Table:
    """Accuracy, centred accuracy and what qualifies it, by task. Columns that are zero throughout are left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = [
        "n",
        "accuracy",
        "± ",
        "centred v1",
        "v2",
        "NaN",
        "ties",
        "rows cut",
        "shots lost",
        "text cut",
        "fed",
        "naive",
    ]
    rows = []
    for task in result.tasks:
        n = f"{task.n:,}" if task.n == task.of else f"{task.n:,} of {task.of:,}"
        cut = f"{task.rows_cut / task.rows:.1%}" if task.rows_cut else ""
        lost = f"{task.shots_lost_mean:.2f}, max {task.shots_lost_max}" if task.shots_lost_max else ""
        rows.append(
            [
                task.label, n, f"{task.accuracy:.4f}", _digits(task.error), f"{task.centred[0]:+.4f}",
                f"{task.centred[1]:+.4f}", _count(task.nan), _count(task.ties), cut, lost, _count(task.text_cut),
                human(task.tokens_fed), human(task.tokens_naive), duration(task.seconds),
            ]
        )  # fmt: skip
    header = ["task", *names, "time"]
    kept = [column for column in range(len(header)) if any(row[column] for row in rows)]
    for column in kept:
        table.add_column(header[column], justify="left" if column == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[column] for column in kept))
    return table


def result_lines(result: CoreResult) -> list[str]:
    """The numbers of the whole, one a line."""
    name = "CORE estimate" if result.name == "core_est" else "CORE"
    part = "" if len(result.tasks) == 22 else f" (of {len(result.tasks)} tasks, not the 22 of CORE)"
    lines = [
        f"{name} v1 {result.core[0]:.6f} ± {_digits(result.core_error[0])}, "
        f"v2 {result.core[1]:.6f} ± {_digits(result.core_error[1])}{part}"
    ]
    if result.settings["dtype"] != "float32":
        near = sum(task.near for task in result.tasks)
        lines.append(
            f"{near:,} items have a margin under {NEAR}; if rounding in {result.settings['dtype']} had flipped them "
            f"all, CORE v1 would differ by {result.flips:.4f} at most"
        )
    cut = [task.label for task in result.tasks if task.rows_cut > task.rows / 20]
    if cut:
        lines.append(
            f"the context of {result.settings['limit']:,} tokens cuts more than 5 % of the rows of {', '.join(cut)}: "
            "compare only with results of the same limit, or with `eval compare --untruncated`"
        )
    fed, naive = sum(task.tokens_fed for task in result.tasks), sum(task.tokens_naive for task in result.tasks)
    spent = ", ".join(f"{part} {duration(seconds)}" for part, seconds in result.seconds.items())
    lines.append(f"{human(fed)} tokens computed for {human(naive)} of rows; {spent}")
    return lines


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _count(value: int) -> str:
    return f"{value:,}" if value else ""
