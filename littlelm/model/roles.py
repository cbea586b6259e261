"""What each parameter is for. The module that owns a parameter says its role; the optimizer goes by it."""

from __future__ import annotations

from torch import nn

from littlelm.optim.configs import ROLES


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Name -> role of every parameter, from the `roles` of the modules that own them.

    A shared parameter (a tied head) is listed once, under its first name, by the module that owns it there.

    Raises:
        ValueError: a parameter with no role, with an unknown one, or owned by modules that disagree.
    """
    roles: dict[str, str] = {}
    owner: dict[int, str] = {}
    for prefix, module in model.named_modules():
        declared: dict[str, str] = getattr(module, "roles", {})
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            role = declared.get(name)
            if role not in ROLES:
                raise ValueError(f"parameter '{full}': {type(module).__name__}.roles gives it no role of {ROLES}")
            first = owner.setdefault(id(parameter), full)
            if first != full:
                if roles[first] != role:
                    raise ValueError(f"parameter '{full}' is '{role}', but as '{first}' it is '{roles[first]}'")
                continue
            roles[full] = role
    return roles
