"""Scheduled hyperparameters: setting them in the groups, and showing them before the run, as text or picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Scheduler = Callable[[int, int], float]

_BARS = " ▁▂▃▄▅▆▇█"


def apply(
    optimizer: torch.optim.Optimizer,
    step: int,
    total_steps: int,
    *,
    lr: Scheduler | None = None,
    momentum: Scheduler | None = None,
    weight_decay: Scheduler | None = None,
) -> dict[str, float]:
    """Set `h = initial_h * multiplier(step)` in every group that has h; None leaves h at its initial value.

    Call it before `optimizer.step()` of that step. Returns the multipliers used, by hyperparameter.
    """
    used: dict[str, float] = {}
    for name, scheduler in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
        if scheduler is None:
            continue
        used[name] = scheduler(step, total_steps)
        for group in optimizer.param_groups:
            if f"initial_{name}" in group:
                group[name] = group[f"initial_{name}"] * used[name]
    return used


def sample_schedule(scheduler: Scheduler, total_steps: int, points: int) -> tuple[list[int], list[float]]:
    """(steps, multipliers) at up to `points` evenly spaced steps, the first and the last among them."""
    count = max(1, min(points, total_steps))
    steps = [round(index * (total_steps - 1) / max(1, count - 1)) for index in range(count)]
    return steps, [scheduler(step, total_steps) for step in steps]


def render_schedule(schedules: Mapping[str, Scheduler], total_steps: int, width: int = 60, height: int = 6) -> str:
    """The curves as text, one block of bars a schedule, each from 0 to its largest multiplier.

    Args:
        schedules: caption -> scheduler.
        total_steps: optimizer steps of the run.
        width: characters of a line at most.
        height: lines of a block.
    """
    blocks = []
    for caption, scheduler in schedules.items():
        _, values = sample_schedule(scheduler, total_steps, width)
        top = max(max(values), 1e-12)
        lines = []
        for row in reversed(range(height)):
            fill = [max(0.0, min(1.0, value / top * height - row)) for value in values]
            bars = "".join(_BARS[round(share * (len(_BARS) - 1))] for share in fill)
            label = f"{top:g}" if row == height - 1 else ("0" if row == 0 else "")
            lines.append(f"{label:>9} │{bars}")
        lines.append(f"{'':>9} └{'─' * len(values)}")
        ends = f"step 0: {values[0]:.4g}"
        lines.append(f"{'':>11}{ends}{f'step {total_steps - 1}: {values[-1]:.4g}':>{max(1, len(values) - len(ends))}}")
        blocks.append("\n".join([caption, *lines]))
    return "\n\n".join(blocks)


def plot_schedule(schedules: Mapping[str, Scheduler], total_steps: int, path: Path | str) -> Path:
    """Draw the curves over the steps, one panel a schedule, to the picture file `path`; returns it.

    Args:
        schedules: caption, for example "lr (peak 0.02)" -> scheduler.
        total_steps: optimizer steps of the run.
        path: .png, .svg or .pdf; missing folders are made.
    """
    from matplotlib.figure import Figure  # here: half a second that no other command needs

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(8, 2.4 * max(1, len(schedules))), layout="constrained")
    panels = figure.subplots(max(1, len(schedules)), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (caption, scheduler) in zip(panels, schedules.items(), strict=False):
        steps, values = sample_schedule(scheduler, total_steps, 1000)
        panel.plot(steps, values, linewidth=1.8)
        panel.set_ylim(0, max(max(values), 1e-12) * 1.08)
        panel.set_title(caption, loc="left", fontsize=10)
        panel.set_ylabel("multiplier")
        panel.grid(alpha=0.25)
    panels[-1].set_xlabel(f"step, of {total_steps:,}")
    figure.savefig(path, dpi=130)
    return path
