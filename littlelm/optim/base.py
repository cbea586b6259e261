"""What every optimizer here has in common: groups by role, scheduled hyperparameters, state by parameter name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from littlelm.errors import UserError
from littlelm.optim.configs import ROLES

SCHEDULED = ("lr", "weight_decay", "momentum")
"""Hyperparameters that a scheduler may multiply, where a group has them."""


class NamedOptimizer(torch.optim.Optimizer):
    """One group of parameters a role; subclass it with `new_state` and `update_group`.

    A group carries `role`, `names` (in the order of `params`), `step` (updates done), and for each scheduled
    hyperparameter h it has, `h` and `initial_h`. All state is allocated here, not at the first step, so that what a
    run needs is known before it starts.

    Args:
        named_parameters: (name, parameter) pairs.
        roles: name -> role, for every one of them.
        defaults: hyperparameters of every group.
        seed: seed of the stochastic rounding.
        stochastic_rounding: round updated bf16 weights stochastically instead of to nearest.
        compute_dtype: of the run's products; an optimizer with products of its own may follow it.

    Raises:
        UserError: a parameter has no role.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Parameter]],
        roles: dict[str, str],
        defaults: dict[str, Any],
        *,
        seed: int = 0,
        stochastic_rounding: bool = False,
        compute_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.seed = seed
        self.stochastic_rounding = stochastic_rounding
        self.compute_dtype = compute_dtype
        groups: dict[str, dict[str, Any]] = {}
        for name, parameter in named_parameters:
            role = role_of(name, roles)
            group = groups.setdefault(
                role, {"params": [], "names": [], "role": role, "step": 0, **defaults, **self.role_defaults(role)}
            )
            group["params"].append(parameter)
            group["names"].append(name)
        super().__init__(list(groups.values()), defaults)
        for group in self.param_groups:
            group.update({f"initial_{h}": group[h] for h in SCHEDULED if h in group})
            for name, parameter in zip(group["names"], group["params"], strict=True):
                self.check_parameter(name, parameter)
                self.state[parameter] = self.new_state(parameter)

    def role_defaults(self, role: str) -> dict[str, Any]:
        """Hyperparameters of the group of `role` that differ from the defaults."""
        return {}

    def check_parameter(self, name: str, parameter: Parameter) -> None:
        """Raise UserError when this optimizer cannot update such a parameter."""

    def new_state(self, parameter: Parameter) -> dict[str, Tensor]:
        """The initial state tensors of one parameter."""
        raise NotImplementedError

    def update_group(self, group: dict[str, Any]) -> None:
        """Update the group's parameters from their gradients; `group["step"]` already counts this update."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] += 1
            self.update_group(group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        load_into(self, state_dict)

    def state_tensors(self) -> dict[str, Tensor]:
        """The whole state, `<parameter name>.<state>` -> tensor; `<parameter name>.step` is an int64 scalar.

        The tensors are the live ones, not copies.
        """
        tensors: dict[str, Tensor] = {}
        for group in self.param_groups:
            for name, parameter in zip(group["names"], group["params"], strict=True):
                tensors[f"{name}.step"] = torch.tensor(group["step"], dtype=torch.int64)
                for key, value in self.state[parameter].items():
                    tensors[f"{name}.{key}"] = value
        return tensors

    @torch.no_grad()
    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state_tensors` gave, bit for bit.

        Raises:
            UserError: a tensor is missing, left over, or of another shape or dtype; nothing is changed then.
        """
        expected = self.state_tensors()
        check_same_tensors(expected, tensors)
        for group in self.param_groups:
            group["step"] = int(tensors[f"{group['names'][0]}.step"])
            for name, parameter in zip(group["names"], group["params"], strict=True):
                for key, value in self.state[parameter].items():
                    value.copy_(tensors[f"{name}.{key}"])


@torch.no_grad()
def load_into(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Copy a `state_dict()` into the state and groups that `optimizer` has.

    torch's own loading would cast fp32 moments of bf16 weights to bf16, and share the tensors with their source.
    """
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for parameter, index in zip(group["params"], saved["params"], strict=True):
            for key, value in optimizer.state[parameter].items():
                value.copy_(state_dict["state"][index][key])
        group.update({key: value for key, value in saved.items() if key != "params"})


def role_of(name: str, roles: dict[str, str]) -> str:
    """The role of parameter `name`. Raises UserError when it has none or an unknown one."""
    role = roles.get(name)
    if role is None:
        raise UserError(
            f"parameter '{name}' has no role, so no optimizer can be chosen for it; name it in the model's "
            f"parameter_roles() with one of: {', '.join(ROLES)}"
        )
    if role not in ROLES:
        raise UserError(f"parameter '{name}' has the unknown role '{role}'; valid: {', '.join(ROLES)}")
    return role


def check_same_tensors(expected: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    problems = [f"missing: {name}" for name in expected.keys() - given.keys()]
    problems += [f"not of this optimizer: {name}" for name in given.keys() - expected.keys()]
    for name in expected.keys() & given.keys():
        want, have = expected[name], given[name]
        if want.shape != have.shape or want.dtype != have.dtype:
            problems.append(
                f"{name} is {have.dtype} {tuple(have.shape)}, this run needs {want.dtype} {tuple(want.shape)}"
            )
    if problems:
        shown = "; ".join(sorted(problems)[:5])
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UserError(
            f"the saved optimizer state does not fit this run's optimizer: {shown}{more}. Resume with the optimizer "
            "and model the checkpoint was made with, or start a new run"
        )
