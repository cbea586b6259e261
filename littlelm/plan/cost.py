"""From FLOPs to hours to dollars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from littlelm.plan.flops import TokenFlops, flops_per_token
from littlelm.plan.hardware import find_gpu
from littlelm.plan.memory import state_bytes
from littlelm.plan.parameters import parameters_by_role


@dataclass(frozen=True)
class Plan:
    """What a run will take. `seconds` and `usd` are None when the file names no GPU or no price."""

    parameters: dict[str, int]
    flops: TokenFlops
    total_tokens: int
    bytes: dict[str, int | None]
    seconds: float | None
    usd: float | None

    @property
    def total_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def total_flops(self) -> float:
        return self.flops.total * self.total_tokens


def plan(config: Any, vocab_size: int) -> Plan:
    """Plan a RunConfig: training alone, at `budget.expected_mfu` of the GPU's bf16 peak; no evaluation, no start-up."""
    flops = flops_per_token(config.model, vocab_size, config.data.sequence_length)
    total_tokens = config.total_steps * config.tokens_per_step
    budget = config.budget
    seconds = usd = None
    if budget.gpu is not None:
        peak = find_gpu(budget.gpu).bf16_flops * budget.gpus * budget.expected_mfu
        seconds = flops.total * total_tokens / peak
        if budget.usd_per_gpu_hour is not None:
            usd = seconds / 3600 * budget.gpus * budget.usd_per_gpu_hour
    return Plan(
        parameters_by_role(config.model, vocab_size),
        flops,
        total_tokens,
        state_bytes(config.model, vocab_size, config.optimizer, config.precision),
        seconds,
        usd,
    )
