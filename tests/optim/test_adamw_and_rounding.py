"""AdamW against torch's own; weights kept in bf16, rounded to nearest or stochastically."""

import math

import pytest
import torch
from torch.nn import Parameter

from littlelm.errors import UserError
from littlelm.optim.adamw import AdamW
from littlelm.optim.configs import AdamWConfig, MuonConfig
from littlelm.optim.muon import Muon
from littlelm.optim.rounding import generator_for, stochastic_round_to_bf16

ROLES = {"a": "matrix", "b": "embedding", "n": "norm"}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (8, 4), "b": (16, 4), "n": (4,)}
    return [(name, Parameter(torch.randn(shape, generator=generator).to(dtype))) for name, shape in shapes.items()]


def set_gradients(named, step, scale=1.0):
    generator = torch.Generator().manual_seed(step)
    for _, parameter in named:
        parameter.grad = (scale * torch.randn(parameter.shape, generator=generator)).to(parameter.dtype)


def test_adamw_equals_torchs_adamw_and_spares_the_roles_it_is_told_to():
    mine, theirs = parameters(), parameters()
    config = AdamWConfig(lr=0.01, betas=[0.8, 0.99], eps=1e-6, weight_decay=0.3)
    ours = AdamW(config, mine, ROLES)
    decayed, spared = [p for n, p in theirs if n != "n"], [p for n, p in theirs if n == "n"]
    groups = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    torchs = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.3)
    for step in range(4):
        set_gradients(mine, step)
        set_gradients(theirs, step)
        ours.step()
        torchs.step()
    for (_, a), (_, b) in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_every_role_is_decayed_when_none_is_spared():
    named = parameters()
    optimizer = AdamW(AdamWConfig(weight_decay=0.1, no_decay_roles=[]), named, ROLES)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.1, 0.1]


def test_a_parameter_without_a_role_is_a_user_error_that_names_it():
    with pytest.raises(UserError, match="'n' has no role"):
        AdamW(AdamWConfig(), parameters(), {"a": "matrix", "b": "embedding"})


def test_state_is_fp32_and_allocated_before_the_first_step():
    for dtype in (torch.float32, torch.bfloat16):
        tensors = AdamW(AdamWConfig(), parameters(dtype), ROLES).state_tensors()
        assert set(tensors) == {f"{name}.{key}" for name in "abn" for key in ("exp_avg", "exp_avg_sq", "step")}
        assert all(tensor.dtype == torch.float32 for name, tensor in tensors.items() if not name.endswith("step"))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_bf16_weights_are_updated_in_fp32_and_rounded_once(kind):
    """One step from equal weights: the bf16 result is the fp32 result, rounded to nearest."""
    low, high = parameters(torch.bfloat16)[:2], parameters(torch.bfloat16)[:2]
    high = [(name, Parameter(parameter.detach().float())) for name, parameter in high]
    if kind == "adamw":
        pair = [AdamW(AdamWConfig(lr=0.01, weight_decay=0.1), named, ROLES) for named in (low, high)]
    else:
        pair = [Muon(MuonConfig(compile=False, weight_decay=0.1), named, ROLES) for named in (low, high)]
    set_gradients(low, 0)
    for (_, a), (_, b) in zip(low, high, strict=True):
        b.grad = a.grad.float()
    for optimizer in pair:
        optimizer.step()
    for (_, a), (_, b) in zip(low, high, strict=True):
        assert torch.equal(a, b.to(torch.bfloat16))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_updates_below_bf16_resolution_are_lost_to_nearest_and_survive_stochastically(kind):
    """1,000 steps of 1e-4 from 1.0, where bf16 steps are 2^-8 downwards: to nearest nothing moves; stochastically the
    weights arrive near 0.9 on average. Each step's error has variance at most (2^-8)^2 / 4, so the mean of 256
    weights after 1,000 steps has standard deviation at most 2^-9 sqrt(1000 / 256) = 0.0039; 5 of them are allowed."""
    arrived = {}
    for stochastic in (False, True):
        named = [("a", Parameter(torch.ones(16, 16, dtype=torch.bfloat16)))]
        keys = {"seed": 1, "stochastic_rounding": stochastic}
        if kind == "adamw":
            optimizer = AdamW(AdamWConfig(lr=1e-4, betas=[0.0, 0.0]), named, ROLES, **keys)
        else:
            # An orthogonal gradient is its own step: the identity, so that only the diagonal moves.
            optimizer = Muon(MuonConfig(lr=1e-4, compile=False, ns_dtype="fp32"), named, ROLES, **keys)
        for _ in range(1000):
            gradient = torch.ones(16, 16) if kind == "adamw" else torch.eye(16)
            named[0][1].grad = gradient.to(torch.bfloat16)
            optimizer.step()
        arrived[stochastic] = named[0][1].detach().float()
    assert torch.equal(arrived[False], torch.ones(16, 16))
    if kind == "adamw":
        assert abs(arrived[True].mean().item() - 0.9) < 5 * 0.0039
    else:
        diagonal = torch.diagonal(arrived[True])
        # 16 weights: 2^-9 sqrt(1000 / 16) = 0.0154; the step is 1e-4 times a singular value in [0.85, 1.15].
        assert 0.885 - 5 * 0.0154 < diagonal.mean().item() < 0.915 + 5 * 0.0154
        assert torch.equal(arrived[True] - torch.diag(diagonal), torch.ones(16, 16) - torch.eye(16))


def test_stochastic_rounding_is_unbiased():
    """A value x between neighbours lo and hi goes up with probability p = (x - lo) / (hi - lo). Over n draws the
    share of ups has standard deviation sqrt(p (1 - p) / n); 5 of them are allowed, for 200 values of both signs."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(200, generator=generator) * torch.logspace(-20, 20, 200)
    draws = 20_000
    rounded = stochastic_round_to_bf16(values.repeat(draws, 1), generator_for(values.device, 0, 0, "w"))
    bits = values.view(torch.int32)
    low = (bits & -(1 << 16)).view(torch.float32)
    high = ((bits & -(1 << 16)) + (1 << 16)).view(torch.float32)
    up = rounded.float() == high
    assert torch.all(up | (rounded.float() == low))
    probability = (values - low) / (high - low)
    bound = 5 * (probability * (1 - probability) / draws).sqrt() + 1e-9
    assert torch.all((up.double().mean(0) - probability).abs() <= bound)


def test_stochastic_rounding_keeps_exact_values_and_values_that_are_not_finite():
    exact = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.0**-126, math.inf, -math.inf, math.nan]).repeat(500)
    rounded = stochastic_round_to_bf16(exact, generator_for(exact.device, 1, 2, "w")).float()
    assert torch.equal(rounded[~exact.isnan()], exact[~exact.isnan()])
    assert rounded[exact.isnan()].isnan().all()


def test_random_bits_are_a_pure_function_of_seed_step_and_name():
    def bits(*key):
        return torch.randint(0, 1 << 30, (8,), generator=generator_for(torch.device("cpu"), *key)).tolist()

    assert bits(1, 2, "w") == bits(1, 2, "w")
    assert len({tuple(bits(*key)) for key in ((1, 2, "w"), (2, 2, "w"), (1, 3, "w"), (1, 2, "v"))}) == 4
