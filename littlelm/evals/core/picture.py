"""Centred accuracy by task, with error bars, of one or several checkpoints side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from littlelm.errors import UserError
from littlelm.evals.core.results import CoreResult

_COLOURS = ("#2457a6", "#d1682a", "#3a8a4d", "#8a4fa3", "#b03a48", "#5c6670")
FORMATS = (".png", ".svg", ".pdf")


def draw(results: Sequence[CoreResult], names: Sequence[str], path: Path, version: int = 0) -> None:
    """Write a picture. Bars of error are two standard errors: about 95 %.

    Args:
        names: of the results, for the legend.
        path: its suffix decides the format.
        version: of the baselines, 0 for v1, 1 for v2.

    Raises:
        UserError: a format that cannot be written.
    """
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: a picture is one of {', '.join(FORMATS)}")
    labels = list(dict.fromkeys(task.label for result in results for task in result.tasks))
    figure = Figure(figsize=(8.5, 1.4 + 0.3 * len(labels) + 0.12 * len(labels) * (len(results) - 1)), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    height = 0.8 / len(results)
    for number, (result, name) in enumerate(zip(results, names, strict=True)):
        tasks = {task.label: task for task in result.tasks}
        places = [row for row, label in enumerate(labels) if label in tasks]
        values = [tasks[labels[row]].centred[version] for row in places]
        errors = [tasks[labels[row]].centred_error[version] for row in places]
        shift = (number - (len(results) - 1) / 2) * height
        error = result.core_error[version]
        axes.errorbar(
            values,
            [row + shift for row in places],
            xerr=[0.0 if math.isnan(value) else 2 * value for value in errors],
            fmt="o",
            markersize=5,
            capsize=2,
            color=_COLOURS[number % len(_COLOURS)],
            label=f"{name}: {result.core[version]:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}"),
        )
    axes.axvline(0, color="#444444", linewidth=1)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel(
        f"centred accuracy (baselines v{version + 1}): 0 is guessing, 1 is perfect; bars: 2 standard errors"
    )
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, ncols=1)
    figure.tight_layout()
    figure.savefig(path)
