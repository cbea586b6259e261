"""The report's pictures, as SVG that follows the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

_LINE = "#2563eb"
_FAINT = "#93c5fd"
_INK = "#777777"  # readable on white and on black
_PARTS = ["#2563eb", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#84cc16", "#ec4899", "#64748b"]


def smooth(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Exponential moving average, corrected for its start."""
    result: list[float] = []
    mean = total = 0.0
    for value in values:
        mean = weight * mean + (1 - weight) * value
        total = weight * total + (1 - weight)
        result.append(mean / total)
    return result


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # The drawing takes the width of the page; matplotlib's fixed size in points would not.
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"', r'<svg \1width="100%"', re.sub(r' height="[^"]*pt"', "", text, count=1)
    )


def _axes(figure: Figure, title: str, ylabel: str) -> Axes:
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    axes.set_ylabel(ylabel, color=_INK, fontsize=9)
    axes.set_xlabel("tokens", color=_INK, fontsize=9)
    axes.tick_params(colors=_INK, labelsize=8)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.2)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(_INK)
    return axes


def validation_curve(records: list[dict[str, Any]]) -> str:
    """Bits per byte over tokens."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = _axes(figure, "validation", "bits per byte")
    x, y = [r["tokens"] for r in records], [r["bits_per_byte"] for r in records]
    axes.plot(x, y, color=_LINE, marker="o", markersize=4, linewidth=1.8)
    axes.annotate(
        f"{y[-1]:.4f}", (x[-1], y[-1]), textcoords="offset points", xytext=(-4, 8), ha="right", color=_LINE, fontsize=10
    )
    return _svg(figure)


def training_curve(records: list[dict[str, Any]], key: str, title: str, ylabel: str, smoothed: bool) -> str | None:
    """One number of the training records over tokens; None when no record has it."""
    points = [(r["tokens"], r[key]) for r in records if r.get(key) is not None]
    if len(points) < 2:
        return None
    figure = Figure(figsize=(5, 2.3), layout="constrained")
    axes = _axes(figure, title, ylabel)
    x, y = [point[0] for point in points], [point[1] for point in points]
    axes.plot(x, y, color=_FAINT if smoothed else _LINE, linewidth=1.0 if smoothed else 1.6)
    if smoothed:
        axes.plot(x, smooth(y), color=_LINE, linewidth=1.6)
    if key == "mfu":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.set_ylim(bottom=0)
    if key in ("tokens_per_second", "lr"):
        axes.set_ylim(bottom=0)
    return _svg(figure)


def parts_bar(parts: dict[str, tuple[float, float | None]]) -> tuple[str, list[str]]:
    """Where the time went, one bar; and the colour of each part."""
    figure = Figure(figsize=(8, 0.5), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    left = 0.0
    colours = [_PARTS[min(i, len(_PARTS) - 1)] for i in range(len(parts))]
    for (seconds, _), colour in zip(parts.values(), colours, strict=True):
        axes.barh(0, seconds, left=left, color=colour)
        left += seconds
    axes.set_xlim(0, max(left, 1e-9))
    return _svg(figure), colours
