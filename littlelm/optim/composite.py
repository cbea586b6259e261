"""Several optimizers acting as one: each role of parameter has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.errors import UserError
from littlelm.optim.base import check_same_tensors, load_into, role_of
from littlelm.optim.configs import CompositeConfig


class Composite(torch.optim.Optimizer):
    """One optimizer whose groups are those of its `parts`, one part an entry of the config that has parameters.

    Groups and states are the very dicts of the parts: whoever changes a group here changes it there.

    Raises:
        UserError: a parameter has no role, or its role no optimizer.
    """

    def __init__(
        self,
        config: CompositeConfig,
        named_parameters: Iterable[tuple[str, Parameter]],
        roles: dict[str, str],
        *,
        seed: int = 0,
        stochastic_rounding: bool = False,
        compute_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        chosen: dict[str, tuple[ComponentConfig, list[tuple[str, Parameter]]]] = {}
        for name, parameter in named_parameters:
            role = role_of(name, roles)
            part_config = config.for_role(role)
            if part_config is None:
                raise UserError(
                    f"parameter '{name}' has the role '{role}', for which optimizer.composite names no optimizer; "
                    f"add `{role}: {{adamw: {{...}}}}` or `default: {{adamw: {{...}}}}`"
                )
            entry = role if getattr(config, role) is not None else "default"
            chosen.setdefault(entry, (part_config, []))[1].append((name, parameter))
        self.parts = [
            registry.build(
                part_config,
                pairs,
                roles,
                seed=seed,
                stochastic_rounding=stochastic_rounding,
                compute_dtype=compute_dtype,
            )
            for part_config, pairs in chosen.values()
        ]
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        for part in self.parts:
            self.state.update(part.state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update by every part."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        load_into(self, state_dict)

    def state_tensors(self) -> dict[str, Tensor]:
        """The whole state of all parts, `<parameter name>.<state>` -> tensor."""
        return {name: tensor for part in self.parts for name, tensor in part.state_tensors().items()}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state_tensors` gave, bit for bit.

        Raises:
            UserError: a tensor is missing, left over, or of another shape or dtype; nothing is changed then.
        """
        check_same_tensors(self.state_tensors(), tensors)
        for part in self.parts:
            part.load_state_tensors({name: tensors[name] for name in part.state_tensors()})
