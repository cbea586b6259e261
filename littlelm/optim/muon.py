"""Muon: momentum, orthogonalised. Matrices of one shape are one batch, shared out over the processes.

Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; weight decay and the
scale that matches AdamW: Liu et al., "Muon is Scalable for LLM Training", 2025, arXiv:2502.16982.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from littlelm.compiled import CompiledOrEager
from littlelm.errors import UserError
from littlelm.optim.base import NamedOptimizer
from littlelm.optim.configs import MuonConfig
from littlelm.optim.newton_schulz import orthogonalize
from littlelm.optim.rounding import write_rounded

# Renamed in torch 2.13, which warns about the old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def step_scale(rows: int, cols: int, rule: str) -> float:
    """Factor on the learning rate of a (rows, cols) = (out, in) matrix.

    spectral: max(1, rows/cols)^0.5, steps of equal size in the norm that matters for a linear map;
    match_rms_adamw: 0.2 max(rows, cols)^0.5, an update of root mean square 0.2, as AdamW's usually is.
    """
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, cols))
    return math.sqrt(max(1.0, rows / cols))


def _advance(
    gradients: list[Tensor],
    momenta: list[Tensor],
    first: int,
    last: int,
    momentum: Tensor,
    nesterov: bool,
    dtype: torch.dtype,
    coefficients: str,
    steps: int,
) -> Tensor:
    """Advance all `momenta` in place; return the orthogonalised steps of matrices [first, last), (n, rows, cols)."""
    mine = []
    for index, (gradient, average) in enumerate(zip(gradients, momenta, strict=True)):
        gradient = gradient.float()
        average.lerp_(gradient, 1.0 - momentum)
        if first <= index < last:
            mine.append((gradient.lerp(average, momentum) if nesterov else average).to(dtype))
    if not mine:  # more ranks than matrices
        return gradients[0].new_empty((0, *gradients[0].shape), dtype=dtype)
    return orthogonalize(torch.stack(mine), coefficients, steps)


def _apply(weights: list[Tensor], steps: list[Tensor], lr: Tensor, keep: Tensor) -> None:
    """weight <- keep weight - lr step, in place, fp32."""
    for weight, step in zip(weights, steps, strict=True):
        weight.mul_(keep).sub_(step.float() * lr)


@dataclass
class _Stack:
    """Matrices of one shape that have a gradient."""

    names: list[str]
    parameters: list[Parameter]

    def share(self, rank: int, world_size: int) -> tuple[int, int, int]:
        """(first, last, size): the matrices of `rank`, and the most that any rank has."""
        size = -(-len(self.parameters) // world_size)
        first = min(rank * size, len(self.parameters))
        return first, min(first + size, len(self.parameters)), size


class Muon(NamedOptimizer):
    """weight <- weight (1 - lr weight_decay) - lr scale orthogonal(momentum), for 2-D weights.

    State: `momentum`, fp32, on every rank, so that one rank's checkpoint is whole. With several processes each
    orthogonalises its share of every stack and gathers the others': the result is the same on all of them. Gradients
    must be equal on all ranks, as DDP leaves them.
    """

    def __init__(
        self,
        config: MuonConfig,
        named_parameters: Iterable[tuple[str, Parameter]],
        roles: dict[str, str],
        *,
        seed: int = 0,
        stochastic_rounding: bool = False,
        compute_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.config = config
        defaults = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
        super().__init__(
            named_parameters,
            roles,
            defaults,
            seed=seed,
            stochastic_rounding=stochastic_rounding,
            compute_dtype=compute_dtype,
        )
        self._dtype = {"auto": compute_dtype, "bf16": torch.bfloat16, "fp32": torch.float32}[config.ns_dtype]
        self._advance_stack = CompiledOrEager(_advance, enabled=config.compile)
        self._apply_stack = CompiledOrEager(_apply, enabled=config.compile)

    def check_parameter(self, name: str, parameter: Parameter) -> None:
        if parameter.ndim != 2:
            raise UserError(
                f"optimizer muon updates matrices only, and parameter '{name}' has shape {tuple(parameter.shape)}; use "
                "`optimizer: {composite: {matrix: {muon: {...}}, default: {adamw: {...}}}}`"
            )

    def new_state(self, parameter: Parameter) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.preserve_format)}

    def update_group(self, group: dict[str, Any]) -> None:
        shared = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if shared else (0, 1)
        # While the steps of one stack travel, those of the next are computed.
        travelling: tuple[_Stack, Tensor, dist.Work | None] | None = None
        for stack in _stacks(group):
            first, last, size = stack.share(rank, world_size)
            steps = self._steps(group, stack, first, last)
            work = None
            if shared:
                steps, work = _gather(steps, size, world_size)
            if travelling is not None:
                self._finish(group, *travelling)
            travelling = stack, steps, work
        if travelling is not None:
            self._finish(group, *travelling)

    def _steps(self, group: dict[str, Any], stack: _Stack, first: int, last: int) -> Tensor:
        """Advance the momenta; the orthogonalised steps of matrices [first, last), (n, rows, cols)."""
        gradients = [parameter.grad for parameter in stack.parameters if parameter.grad is not None]
        momenta = [self.state[parameter]["momentum"] for parameter in stack.parameters]
        key = (len(gradients), gradients[0].shape, gradients[0].dtype, gradients[0].device)
        steps: Tensor = self._advance_stack(
            key,
            gradients,
            momenta,
            first,
            last,
            torch.tensor(group["momentum"]),  # a tensor: a new number would be a new graph
            self.config.nesterov,
            self._dtype,
            self.config.coefficients,
            self.config.ns_steps,
        )
        return steps

    def _finish(self, group: dict[str, Any], stack: _Stack, steps: Tensor, work: dist.Work | None) -> None:
        """Wait for the orthogonalised steps of all matrices of the stack, then update its weights."""
        if work is not None:
            work.wait()
        rows, cols = stack.parameters[0].shape
        lr = torch.tensor(group["lr"] * step_scale(rows, cols, self.config.scale))
        keep = torch.tensor(1.0 - group["lr"] * group["weight_decay"])
        count = len(stack.parameters)
        each = list(steps[:count].unbind(0))
        if stack.parameters[0].dtype == torch.float32:
            key = (count, rows, cols, stack.parameters[0].device)
            self._apply_stack(key, [parameter.detach() for parameter in stack.parameters], each, lr, keep)
            return
        for name, parameter, step in zip(stack.names, stack.parameters, each, strict=True):
            weight = parameter.float()
            _apply([weight], [step], lr, keep)
            write_rounded(
                parameter, weight, stochastic=self.stochastic_rounding, seed=self.seed, step=group["step"], name=name
            )


def _stacks(group: dict[str, Any]) -> list[_Stack]:
    """The group's matrices with a gradient by shape, in an order that is the same on every rank."""
    stacks: dict[Any, _Stack] = {}
    for name, parameter in zip(group["names"], group["params"], strict=True):
        if parameter.grad is None:
            continue
        stack = stacks.setdefault((parameter.shape, parameter.dtype, parameter.device), _Stack([], []))
        stack.names.append(name)
        stack.parameters.append(parameter)
    return list(stacks.values())


def _gather(mine: Tensor, size: int, world_size: int) -> tuple[Tensor, dist.Work | None]:
    """Start gathering every rank's steps: (size * world_size, rows, cols), in order, the padding last."""
    if mine.size(0) < size:
        padding = mine.new_zeros((size - mine.size(0), *mine.shape[1:]))
        mine = torch.cat([mine, padding])
    everyone = mine.new_empty((size * world_size, *mine.shape[1:]))
    return everyone, _all_gather(everyone, mine.contiguous(), async_op=True)
