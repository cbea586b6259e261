"""The composite optimizer: one optimizer by role, one object for the trainer."""

import pytest
import torch
from pydantic import ValidationError
from torch.nn import Parameter

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.errors import UserError
from littlelm.optim.base import NamedOptimizer
from littlelm.optim.configs import AdamWConfig, CompositeConfig, MuonConfig

ROLES = {
    "embed": "embedding",
    "q": "matrix",
    "k": "matrix",
    "up": "matrix",
    "head": "head",
    "lambdas": "scalar",
    "norm": "norm",
}
SHAPES = {"embed": (12, 8), "q": (8, 8), "k": (8, 8), "up": (16, 8), "head": (12, 8), "lambdas": (2,), "norm": (8,)}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [(name, Parameter(torch.randn(shape, generator=generator).to(dtype))) for name, shape in SHAPES.items()]


def config(**keys):
    muon = MuonConfig(lr=0.02, weight_decay=0.1, compile=False)
    return CompositeConfig(matrix=muon, embedding=AdamWConfig(lr=0.2), default=AdamWConfig(lr=0.01), **keys)


def build(named, settings=None, **keys):
    return registry.build(settings or config(), named, ROLES, **keys)


def step(optimizer, named, number):
    generator = torch.Generator().manual_seed(number)
    for _, parameter in named:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    optimizer.step()


def test_each_role_gets_its_optimizer_and_each_group_says_role_names_and_initial_values():
    optimizer = build(parameters())
    assert isinstance(optimizer, torch.optim.Optimizer)
    by_role = {group["role"]: group for group in optimizer.param_groups}
    assert {role: group["names"] for role, group in by_role.items()} == {
        "embedding": ["embed"],
        "matrix": ["q", "k", "up"],
        "head": ["head"],
        "scalar": ["lambdas"],
        "norm": ["norm"],
    }
    assert {role: group["initial_lr"] for role, group in by_role.items()} == {
        "embedding": 0.2,
        "matrix": 0.02,
        "head": 0.01,
        "scalar": 0.01,
        "norm": 0.01,
    }
    assert by_role["matrix"]["initial_momentum"] == 0.95 and by_role["matrix"]["initial_weight_decay"] == 0.1
    assert "initial_momentum" not in by_role["head"]


def test_composite_steps_every_parameter_as_its_own_optimizer_would():
    together, apart = parameters(), parameters()
    optimizer = build(together)
    chosen = {"matrix": MuonConfig(lr=0.02, weight_decay=0.1, compile=False), "embedding": AdamWConfig(lr=0.2)}
    for number in range(3):
        step(optimizer, together, number)
    for (name, want), (_, start) in zip(together, apart, strict=True):
        alone = registry.build(chosen.get(ROLES[name], AdamWConfig(lr=0.01)), [(name, start)], ROLES)
        for number in range(3):
            gradients = [(n, Parameter(torch.empty(shape))) for n, shape in SHAPES.items()]
            generator = torch.Generator().manual_seed(number)
            for other, parameter in gradients:
                value = torch.randn(parameter.shape, generator=generator)
                if other == name:
                    start.grad = value
            alone.step()
        assert torch.equal(want, start)


def test_a_changed_group_of_the_composite_changes_the_step():
    named = parameters()
    optimizer = build(named)
    before = {name: parameter.detach().clone() for name, parameter in named}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(optimizer, named, 0)
    assert all(torch.equal(before[name], parameter) for name, parameter in named)


@pytest.mark.parametrize("stochastic", [False, True])
def test_resume_is_bitwise_for_the_optimizer_state(stochastic):
    dtype = torch.bfloat16 if stochastic else torch.float32
    straight, first, second = parameters(dtype), parameters(dtype), parameters(dtype)
    keys = {"seed": 5, "stochastic_rounding": stochastic}
    whole = build(straight, **keys)
    for number in range(6):
        step(whole, straight, number)
    before = build(first, **keys)
    for number in range(3):
        step(before, first, number)
    saved = {name: tensor.clone() for name, tensor in before.state_tensors().items()}
    after = build(second, **keys)
    after.load_state_tensors(saved)
    with torch.no_grad():
        for (_, a), (_, b) in zip(first, second, strict=True):
            b.copy_(a)
    for number in range(3, 6):
        step(after, second, number)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(straight, second, strict=True))
    one, two = whole.state_tensors(), after.state_tensors()
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert one["q.step"].item() == one["embed.step"].item() == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", [config(), AdamWConfig()], ids=lambda settings: settings.name)
def test_torchs_own_state_dict_round_trips_too(dtype, settings):
    first, second = parameters(dtype), parameters(dtype)
    one, two = build(first, settings), build(second, settings)
    step(one, first, 0)
    two.load_state_dict(one.state_dict())
    with torch.no_grad():
        for (_, a), (_, b) in zip(first, second, strict=True):
            b.copy_(a)
    step(one, first, 1)
    step(two, second, 1)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first, second, strict=True))


@pytest.mark.parametrize("damage", ["missing", "extra", "shape", "dtype"])
def test_state_that_does_not_fit_is_a_user_error_and_changes_nothing(damage):
    named = parameters()
    optimizer = build(named)
    step(optimizer, named, 0)
    before = {name: tensor.clone() for name, tensor in optimizer.state_tensors().items()}
    other = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    if damage == "missing":
        del other["q.momentum"]
    elif damage == "extra":
        other["gone.momentum"] = torch.zeros(1)
    elif damage == "shape":
        other["q.momentum"] = torch.zeros(3, 3)
    else:
        other["q.momentum"] = torch.zeros(8, 8, dtype=torch.bfloat16)
    with pytest.raises(UserError, match=r"gone\.momentum" if damage == "extra" else r"q\.momentum"):
        optimizer.load_state_tensors(other)
    after = optimizer.state_tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_role_without_an_optimizer_is_a_user_error_that_names_parameter_and_role():
    with pytest.raises(UserError, match=r"'embed'.*'embedding'.*default"):
        build(parameters(), CompositeConfig(matrix=MuonConfig(compile=False)))


def test_a_parameter_with_no_or_an_unknown_role_is_a_user_error_that_names_it():
    with pytest.raises(UserError, match="'q' has no role"):
        registry.build(config(), parameters(), {name: role for name, role in ROLES.items() if name != "q"})
    with pytest.raises(UserError, match="'q' has the unknown role 'matrx'"):
        registry.build(config(), parameters(), ROLES | {"q": "matrx"})


def test_muon_for_scalars_is_a_user_error():
    with pytest.raises(UserError, match="'lambdas' has shape"):
        build(parameters(), CompositeConfig(default=MuonConfig()))


def test_a_composite_needs_a_part_and_no_composite_in_it():
    with pytest.raises(ValidationError, match="at least one of"):
        CompositeConfig()
    with pytest.raises(ValidationError, match="may not contain another"):
        CompositeConfig(default=config())


def test_an_optimizer_of_ones_own_takes_part(monkeypatch):
    class SignConfig(ComponentConfig):
        """Sign descent."""

        lr: float = 0.5

    monkeypatch.setitem(registry._entries, "optimizer", dict(registry._entries["optimizer"]))

    @registry.register("optimizer", "sign", config=SignConfig)
    class Sign(NamedOptimizer):
        def __init__(self, config, named_parameters, roles, **keys):
            super().__init__(named_parameters, roles, {"lr": config.lr}, **keys)

        def new_state(self, parameter):
            return {}

        def update_group(self, group):
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad.sign())

    named = parameters()
    before = named[0][1].detach().clone()
    optimizer = build(named, CompositeConfig(embedding=SignConfig(), default=AdamWConfig()))
    step(optimizer, named, 0)
    torch.testing.assert_close(named[0][1].detach(), before - 0.5 * named[0][1].grad.sign())
