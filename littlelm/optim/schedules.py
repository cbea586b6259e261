"""Schedules: pure functions `(step, total_steps) -> multiplier` of a peak value. Free of torch.

One convention for all: `step` counts from 0 and the multiplier of `step` is the one used by that step's update.
- Warm-up over W steps multiplies by (step + 1) / W: the first step already moves, step W - 1 has the full value.
- A decline over D steps that ends with the run passes `1 - (step - start) / D`: it would reach its end value at
  `step == total_steps`, one past the last, so that no step is spent at a learning rate of 0.
The same functions serve the learning rate, Muon's momentum and the weight decay.
"""

from __future__ import annotations

import math

from pydantic import Field, model_validator

from littlelm.config.base import ComponentConfig, Count
from littlelm.registry import declare_kind, register

declare_kind("scheduler", "built with (config): a pure function (step, total_steps) -> multiplier of the peak value")


def _steps(ratio: float, total_steps: int) -> int:
    return round(ratio * total_steps)


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps > 0 else 1.0


class TrapezoidalConfig(ComponentConfig):
    """Linear warm-up, flat, linear decline to a fraction: the flat part can be prolonged without starting over."""

    warmup_ratio: float = Field(0.05, ge=0, le=1, description="fraction of all steps spent warming up")
    warmdown_ratio: float = Field(0.5, ge=0, le=1, description="fraction of all steps spent declining, at the end")
    final_lr_frac: float = Field(0.05, ge=0, le=1, description="fraction of the peak reached at the end")

    @model_validator(mode="after")
    def _parts_fit(self) -> TrapezoidalConfig:
        if self.warmup_ratio + self.warmdown_ratio > 1:
            raise ValueError(
                f"warmup_ratio {self.warmup_ratio} + warmdown_ratio {self.warmdown_ratio} is more than the whole run; "
                "their sum may be at most 1"
            )
        return self


@register("scheduler", "trapezoidal", config=TrapezoidalConfig)
class Trapezoidal:
    """Warm-up, hold, linear decline (Hägele et al. 2024, arXiv:2405.18392)."""

    def __init__(self, config: TrapezoidalConfig) -> None:
        self.config = config

    def __call__(self, step: int, total_steps: int) -> float:
        decline_steps = _steps(self.config.warmdown_ratio, total_steps)
        value = _warmup(step, _steps(self.config.warmup_ratio, total_steps))
        left = total_steps - step
        if left < decline_steps:
            share = max(0, left) / decline_steps
            value = min(value, share + (1 - share) * self.config.final_lr_frac)
        return value


class CosineConfig(ComponentConfig):
    """Linear warm-up, then half a cosine down to a fraction of the peak."""

    warmup_ratio: float = Field(0.05, ge=0, le=1, description="fraction of all steps spent warming up")
    final_lr_frac: float = Field(0.1, ge=0, le=1, description="fraction of the peak reached at the end")


@register("scheduler", "cosine", config=CosineConfig)
class Cosine:
    """Half a cosine after the warm-up (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts)."""

    def __init__(self, config: CosineConfig) -> None:
        self.config = config

    def __call__(self, step: int, total_steps: int) -> float:
        warmup_steps = _steps(self.config.warmup_ratio, total_steps)
        if step < warmup_steps:
            return _warmup(step, warmup_steps)
        share = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        return self.config.final_lr_frac + (1 - self.config.final_lr_frac) * 0.5 * (1 + math.cos(math.pi * share))


class LinearConfig(ComponentConfig):
    """Linear warm-up, then a straight line from one fraction to another; also a ramp for momentum or weight decay."""

    warmup_ratio: float = Field(0.0, ge=0, le=1, description="fraction of all steps spent warming up")
    initial_frac: float = Field(1.0, ge=0, description="fraction of the peak at which the line starts")
    final_frac: float = Field(0.0, ge=0, description="fraction of the peak at which the line ends and stays")
    ramp_ratio: float | None = Field(
        None, gt=0, le=1, description="length of the line as a fraction of all steps; null: all after the warm-up"
    )
    ramp_steps: Count | None = Field(None, ge=1, description="length of the line in steps, instead of ramp_ratio")

    @model_validator(mode="after")
    def _one_length(self) -> LinearConfig:
        if self.ramp_ratio is not None and self.ramp_steps is not None:
            raise ValueError("ramp_ratio and ramp_steps both say how long the line is; give one of them")
        return self


@register("scheduler", "linear", config=LinearConfig)
class Linear:
    """A straight line. Momentum from 0.85 to 0.95 over 300 steps, at `momentum: 0.95`: `{linear: {initial_frac:
    0.894737, final_frac: 1.0, ramp_steps: 300}}`; weight decay down to 0 over the run: `{linear: {}}`."""

    def __init__(self, config: LinearConfig) -> None:
        self.config = config

    def __call__(self, step: int, total_steps: int) -> float:
        warmup_steps = _steps(self.config.warmup_ratio, total_steps)
        if self.config.ramp_steps is not None:
            ramp_steps = self.config.ramp_steps
        elif self.config.ramp_ratio is not None:
            ramp_steps = _steps(self.config.ramp_ratio, total_steps)
        else:
            ramp_steps = total_steps - warmup_steps
        share = min(1.0, max(0, step - warmup_steps) / max(1, ramp_steps))
        line = self.config.initial_frac + (self.config.final_frac - self.config.initial_frac) * share
        return line * _warmup(step, warmup_steps)


class ConstantConfig(ComponentConfig):
    """Linear warm-up, then the peak value for ever."""

    warmup_ratio: float = Field(0.0, ge=0, le=1, description="fraction of all steps spent warming up")


@register("scheduler", "constant", config=ConstantConfig)
class Constant:
    """The peak value after the warm-up."""

    def __init__(self, config: ConstantConfig) -> None:
        self.config = config

    def __call__(self, step: int, total_steps: int) -> float:
        return _warmup(step, _steps(self.config.warmup_ratio, total_steps))
