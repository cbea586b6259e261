"""Schedules, setting them, drawing them; clipping."""

import math
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from torch.nn import Parameter

from littlelm import registry
from littlelm.optim import schedule
from littlelm.optim.clip import clip_grad_norm
from littlelm.optim.configs import AdamWConfig, CompositeConfig, MuonConfig
from littlelm.optim.schedules import (
    Constant,
    ConstantConfig,
    Cosine,
    CosineConfig,
    Linear,
    LinearConfig,
    Trapezoidal,
    TrapezoidalConfig,
)

ALL = [
    Trapezoidal(TrapezoidalConfig(warmup_ratio=0.1)),
    Cosine(CosineConfig(warmup_ratio=0.1)),
    Linear(LinearConfig(warmup_ratio=0.1)),
    Constant(ConstantConfig(warmup_ratio=0.1)),
]


@pytest.mark.parametrize("scheduler", ALL, ids=lambda scheduler: type(scheduler).__name__)
def test_warmup_starts_above_zero_rises_evenly_and_ends_at_the_peak(scheduler):
    values = [scheduler(step, 200) for step in range(20)]
    if not isinstance(scheduler, Linear):  # a line falls from its first step after the warm-up
        assert scheduler(20, 200) == pytest.approx(1.0)
    assert values == pytest.approx([(step + 1) / 20 for step in range(20)])


@pytest.mark.parametrize("scheduler", ALL, ids=lambda scheduler: type(scheduler).__name__)
@pytest.mark.parametrize("total", [1, 2, 7, 1000])
def test_no_step_of_any_run_is_spent_at_a_learning_rate_of_zero(scheduler, total):
    assert all(0 < scheduler(step, total) <= 1 for step in range(total))


def test_trapezoidal_holds_then_declines_to_the_final_fraction():
    scheduler = Trapezoidal(TrapezoidalConfig(warmup_ratio=0.0, warmdown_ratio=0.5, final_lr_frac=0.1))
    assert [scheduler(step, 100) for step in (0, 25, 50)] == [1.0, 1.0, 1.0]
    assert scheduler(75, 100) == pytest.approx(0.55)
    assert scheduler(100, 100) == pytest.approx(0.1)
    assert scheduler(99, 100) == pytest.approx(0.1 + 0.9 / 50)


def test_cosine_passes_the_middle_halfway_and_ends_at_the_final_fraction():
    scheduler = Cosine(CosineConfig(warmup_ratio=0.0, final_lr_frac=0.2))
    assert scheduler(50, 100) == pytest.approx(0.6)
    assert scheduler(25, 100) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert scheduler(100, 100) == pytest.approx(0.2)


def test_linear_is_a_ramp_over_a_number_of_steps_or_a_share_of_the_run():
    momentum = Linear(LinearConfig(initial_frac=0.85 / 0.95, final_frac=1.0, ramp_steps=300))
    assert [0.95 * momentum(step, 10_000) for step in (0, 150, 300, 9_999)] == pytest.approx([0.85, 0.9, 0.95, 0.95])
    decay = Linear(LinearConfig())
    assert [decay(step, 100) for step in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])
    half = Linear(LinearConfig(final_frac=0.5, ramp_ratio=0.5))
    assert [half(step, 100) for step in (0, 25, 50, 99)] == pytest.approx([1.0, 0.75, 0.5, 0.5])


def test_contradictions_are_said_in_words():
    with pytest.raises(ValidationError, match="more than the whole run"):
        TrapezoidalConfig(warmup_ratio=0.6, warmdown_ratio=0.6)
    with pytest.raises(ValidationError, match="give one of them"):
        LinearConfig(ramp_ratio=0.5, ramp_steps=10)
    with pytest.raises(ValidationError, match="set ns_steps: 5 or coefficients: classic"):
        MuonConfig(ns_steps=6)
    with pytest.raises(ValidationError, match="below 1"):
        AdamWConfig(betas=[0.9, 1.0])


def test_every_scheduler_of_the_registry_has_a_warmup_ratio():
    for name in registry.names("scheduler"):
        assert "warmup_ratio" in registry.entry("scheduler", name).config.model_fields


def test_apply_multiplies_initial_values_only_where_a_group_has_them():
    named = [("m", Parameter(torch.ones(2, 2))), ("n", Parameter(torch.ones(2)))]
    settings = CompositeConfig(matrix=MuonConfig(lr=0.02, weight_decay=0.1, compile=False), default=AdamWConfig(lr=0.5))
    optimizer = registry.build(settings, named, {"m": "matrix", "n": "norm"})
    for step in (10, 75):  # twice: it multiplies the initial value, not the last one
        used = schedule.apply(
            optimizer,
            step,
            100,
            lr=Trapezoidal(TrapezoidalConfig(warmup_ratio=0.0, warmdown_ratio=0.5, final_lr_frac=0.0)),
            momentum=Linear(LinearConfig(initial_frac=0.9, final_frac=1.0)),
        )
    matrix, norm = optimizer.param_groups
    assert used == pytest.approx({"lr": 0.5, "momentum": 0.975})
    assert (matrix["lr"], matrix["momentum"], matrix["weight_decay"]) == pytest.approx((0.01, 0.95 * 0.975, 0.1))
    assert norm["lr"] == pytest.approx(0.25) and "momentum" not in norm


def test_a_schedule_is_rendered_as_bars_with_its_ends_written_out():
    text = schedule.render_schedule({"lr (peak 0.02)": ALL[0], "momentum": ALL[3]}, 1000, width=40, height=4)
    blocks = text.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["lr (peak 0.02)", "momentum"]
    assert "step 0: 0.01" in blocks[0] and "step 999: 0.0519" in blocks[0]
    lines = blocks[0].splitlines()
    assert all(len(line) <= 40 + 11 for line in lines)
    bottom = lines[4].partition("│")[2]
    assert bottom[20] == "█" and bottom[-1] in "▁▂" and lines[1].partition("│")[2][-1] == " "
    assert schedule.render_schedule({"lr": ALL[0]}, 1)


def test_a_schedule_is_drawn_to_a_picture(tmp_path):
    path = schedule.plot_schedule({"lr": ALL[0], "momentum": ALL[2]}, 1000, tmp_path / "new" / "schedule.png")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_configs_and_schedules_need_no_torch():
    modules = "optim.configs, littlelm.optim.schedules, littlelm.optim.schedule, littlelm.loss.configs"
    program = f"import sys, littlelm.{modules}, littlelm.precision.configs; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clip_scales_to_the_norm_and_returns_the_norm_before(dtype):
    named = [
        Parameter(torch.zeros(50, 40, dtype=dtype)),
        Parameter(torch.zeros(7, dtype=dtype)),
        Parameter(torch.zeros(3)),
    ]
    generator = torch.Generator().manual_seed(0)
    for parameter in named[:2]:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
    before = torch.cat([parameter.grad.double().flatten() for parameter in named[:2]])
    assert clip_grad_norm(named, None).item() == pytest.approx(before.norm().item(), rel=1e-6)
    total = clip_grad_norm(named, 2.0)
    after = torch.cat([parameter.grad.double().flatten() for parameter in named[:2]])
    assert total.dtype == torch.float32 and total.item() == pytest.approx(before.norm().item(), rel=1e-6)
    assert after.norm().item() == pytest.approx(2.0, rel=1e-5 if dtype == torch.float32 else 2**-8)
    torch.testing.assert_close(
        after, before * (2.0 / before.norm()), rtol=1e-5 if dtype == torch.float32 else 2**-8, atol=0
    )


def test_clip_leaves_a_small_gradient_bit_for_bit():
    parameter = Parameter(torch.zeros(5))
    parameter.grad = torch.full((5,), 0.1)
    clip_grad_norm([parameter], 1.0)
    assert torch.equal(parameter.grad, torch.full((5,), 0.1))


def test_clip_reports_a_norm_that_is_not_finite():
    for bad in (math.inf, math.nan):
        parameter = Parameter(torch.zeros(5))
        parameter.grad = torch.tensor([1.0, bad, 0.0, 0.0, 0.0])
        assert not clip_grad_norm([parameter], 1.0).isfinite()
