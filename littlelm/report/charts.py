"""The report's pictures: SVG that takes its colours from the page, so that they follow light, dark and print."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from littlelm.units import human

WIDE = (9.2, 3.3)  # inches; a full row of the page
NARROW = (4.5, 2.9)  # half a row, and a whole one on a phone
_TICKS = [1, 2, 2.5, 5, 10]
MAX_POINTS = 400  # of a curve; more would not be seen

# Colours that stand for a variable of the page's style sheet: matplotlib writes them, `_themed` replaces them.
_INK, _MUTED, _GRID = "#010101", "#010102", "#010103"
_SERIES = ("#010201", "#010202", "#010203", "#010204", "#010205", "#010206")
_VARIABLES = {
    _INK: "--ink",
    _MUTED: "--muted",
    _GRID: "--line",
    **{colour: f"--series-{index}" for index, colour in enumerate(_SERIES, start=1)},
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: selectable, and in the page's font
    "font.size": 9.0,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _MUTED,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.bottom": False,
    "ytick.left": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Curve:
    """A named sequence of points; `None` and non-finite values are gaps."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    smooth: bool = False  # many noisy points: a line through means, over a band from least to greatest


def _points(curve: Curve) -> list[tuple[float, float]]:
    pairs = zip(curve.x, curve.y, strict=True)
    return [(x, float(y)) for x, y in pairs if y is not None and math.isfinite(y)]


def bins(points: list[tuple[float, float]], count: int) -> list[tuple[float, float, float, float]]:
    """At most `count` runs of neighbouring points as (mean x, mean y, least y, greatest y)."""
    result = []
    size = max(1, math.ceil(len(points) / count))
    for start in range(0, len(points), size):
        group = points[start : start + size]
        ys = [y for _, y in group]
        result.append((sum(x for x, _ in group) / len(group), sum(ys) / len(ys), min(ys), max(ys)))
    return result


def _draw(axes: Any, curve: Curve, colour: str) -> list[tuple[float, float]]:
    """Draw a curve; returns the points of its line."""
    points = _points(curve)
    if curve.smooth:
        groups = bins(points, min(MAX_POINTS, max(40, len(points) // 10)))
        xs = [group[0] for group in groups]
        axes.fill_between(xs, [g[2] for g in groups], [g[3] for g in groups], color=colour, alpha=0.2, linewidth=0)
        line = [(group[0], group[1]) for group in groups]
    else:
        line = [(group[0], group[1]) for group in bins(points, MAX_POINTS)] if len(points) > MAX_POINTS else points
    few = len(line) <= 40 and not curve.smooth
    xs, ys = [x for x, _ in line], [y for _, y in line]
    axes.plot(xs, ys, color=colour, label=curve.label, marker="o" if few else None, markersize=3.5)
    return line


def _spread(line: list[tuple[float, float]]) -> float:
    """A margin: a tenth of the range of a curve without its first twentieth."""
    ys = [y for _, y in line[len(line) // 20 :]]
    return 0.1 * (max(ys) - min(ys))


def line_chart(
    title: str,
    curves: list[Curve],
    size: tuple[float, float],
    format_y: Callable[[float], str] = human,
    *,
    from_zero: bool = False,
    format_last: Callable[[float], str] | None = None,
    cut_start: bool = False,
) -> str:
    """An inline `<svg>` of curves over tokens.

    Args:
        from_zero: let the y axis start at 0, for quantities whose ratio to 0 means something.
        format_last: write the last value beside its point, like this.
        cut_start: let the first twentieth of a long curve begin above the picture, so that the rest can be read.
    """
    # The salt gives the same file for the same data, and ids that no other chart of the page has.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"{title} {size}"}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontweight="bold", color=_INK)
        for curve, colour in zip(curves, _SERIES, strict=False):
            line = _draw(axes, curve, colour)
            if format_last is not None and line:
                axes.plot(*line[-1], marker="o", markersize=6, color=colour)
                # Right of the point, where no curve can run through it, however steep its end.
                axes.annotate(
                    format_last(line[-1][1]), line[-1], xytext=(8, 0), textcoords="offset points", ha="left",
                    va="center", fontweight="bold", color=_INK, fontsize=10.5,
                )  # fmt: skip
            if cut_start and len(line) >= 100:
                axes.set_ylim(top=max(y for _, y in line[len(line) // 20 :]) + _spread(line))
        if from_zero:
            axes.set_ylim(bottom=0)
        if format_last is not None:
            axes.margins(y=0.12)
        axes.set_xlim(left=0)
        axes.set_xlabel("training tokens")
        axes.xaxis.set_major_locator(MaxNLocator(6 if size == WIDE else 4, steps=_TICKS))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_TICKS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_y(value)))
        if len(curves) > 1:
            columns = 2 if sum(len(curve.label) for curve in curves) < 50 else 1
            figure.legend(loc="outside lower left", ncols=columns, handlelength=1.4)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None})
    return _themed(buffer.getvalue(), title)


def _themed(svg: str, title: str) -> str:
    """matplotlib's SVG as an element of the page: no prologue, colours and fonts of the page, no ids twice."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would hold for the whole page
    svg = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", svg)  # names of groups; clip paths and markers keep theirs
    svg = re.sub(r"\b(width|height)=\"[0-9.]+pt\" ", "", svg, count=2)
    # Older versions write one `font:`, later ones a `font-family:`.
    svg = re.sub(r"font: ((?:bold |700 )?)([0-9.]+)px [^;\"]*", r"font: \g<1>\g<2>px var(--font)", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
