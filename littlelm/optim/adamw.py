"""AdamW: torch's fused kernel, with fp32 moments and explicit rounding for weights kept in bf16."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adamw import adamw

from littlelm.optim.base import NamedOptimizer
from littlelm.optim.configs import AdamWConfig
from littlelm.optim.rounding import write_rounded


class AdamW(NamedOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101).

    weight <- weight (1 - lr weight_decay) - lr m / (sqrt(v) + eps), m and v corrected for their start at 0.

    The fused kernel is the fastest here: 4.2M fp32 weights on 2 cores took 1.4 ms fused, 1.5 to 1.8 compiled, 10
    to 20 foreach, 12 one operation at a time. State: `exp_avg`, `exp_avg_sq`, fp32: in bf16 a second moment with
    beta 0.999 would never move, its increment being below half a unit in the last place.
    """

    def __init__(
        self,
        config: AdamWConfig,
        named_parameters: Iterable[tuple[str, Parameter]],
        roles: dict[str, str],
        *,
        seed: int = 0,
        stochastic_rounding: bool = False,
        compute_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self._no_decay_roles = frozenset(config.no_decay_roles)
        defaults = {
            "lr": config.lr,
            "betas": (config.betas[0], config.betas[1]),
            "eps": config.eps,
            "weight_decay": config.weight_decay,
        }
        super().__init__(
            named_parameters,
            roles,
            defaults,
            seed=seed,
            stochastic_rounding=stochastic_rounding,
            compute_dtype=compute_dtype,
        )

    def role_defaults(self, role: str) -> dict[str, Any]:
        return {"weight_decay": 0.0} if role in self._no_decay_roles else {}

    def new_state(self, parameter: Parameter) -> dict[str, Tensor]:
        return {
            key: torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.preserve_format)
            for key in ("exp_avg", "exp_avg_sq")
        }

    def update_group(self, group: dict[str, Any]) -> None:
        present = [
            (name, parameter)
            for name, parameter in zip(group["names"], group["params"], strict=True)
            if parameter.grad is not None
        ]
        exact = [parameter for _, parameter in present if parameter.dtype == torch.float32]
        self._fused(group, exact, exact)
        for name, parameter in present:
            if parameter.dtype == torch.float32:
                continue
            # One at a time: the fp32 copies of one parameter exist, not those of all.
            updated = parameter.float()
            self._fused(group, [parameter], [updated])
            write_rounded(
                parameter,
                updated,
                stochastic=self.stochastic_rounding,
                seed=self.seed,
                step=group["step"],
                name=name,
            )

    def _fused(self, group: dict[str, Any], parameters: list[Parameter], weights: list[Any]) -> None:
        """Update fp32 `weights` in place from the gradients and states of `parameters`."""
        if not parameters:
            return
        gradients = [parameter.grad.float() for parameter in parameters if parameter.grad is not None]
        states = [self.state[parameter] for parameter in parameters]
        # The kernel counts steps in tensors, one a weight, beside the weights; ours is one whole number.
        counts = torch.full((len(weights),), group["step"] - 1.0, device=weights[0].device).unbind(0)
        adamw(
            weights,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            list(counts),
            fused=True,
            amsgrad=False,
            maximize=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )
