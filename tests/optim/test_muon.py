"""Muon: the batched step against one matrix at a time, against torch's own, and over processes."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import Parameter

from littlelm.errors import UserError
from littlelm.optim.configs import MuonConfig
from littlelm.optim.muon import Muon
from littlelm.optim.newton_schulz import CLASSIC, POLAR_EXPRESS, coefficients_of, orthogonalize

SHAPES = [(16, 16), (32, 16), (16, 48), (16, 16), (32, 16), (16, 16), (8, 24)]


def matrices(shapes=SHAPES, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(f"m{i}", Parameter(torch.randn(s, generator=generator).to(dtype))) for i, s in enumerate(shapes)]


def roles_of(named):
    return {name: "matrix" for name, _ in named}


def set_gradients(named, step):
    generator = torch.Generator().manual_seed(1000 + step)
    for _, parameter in named:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def build(named, **keys):
    keys = {"compile": False, **keys}
    return Muon(MuonConfig(**keys), named, roles_of(named))


def plain_orthogonalize(matrix, coefficients, safety):
    """One matrix, one line a formula: the reference of the batched code."""
    x = matrix / (matrix.norm() * safety)
    if matrix.shape[0] > matrix.shape[1]:
        x = x.T
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale", ["spectral", "match_rms_adamw"])
@pytest.mark.parametrize("coefficients", ["classic", "polar_express"])
def test_fast_path_equals_reference_batched_muon_equals_one_matrix_at_a_time(coefficients, scale, nesterov):
    named = matrices()
    config = {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.2, "nesterov": nesterov, "ns_dtype": "fp32"}
    optimizer = build(named, coefficients=coefficients, scale=scale, **config)
    table, safety = (POLAR_EXPRESS, 1.02) if coefficients == "polar_express" else ((CLASSIC,) * 5, 1.0)
    reference = {name: parameter.detach().clone() for name, parameter in named}
    average = {name: torch.zeros_like(parameter) for name, parameter in named}
    for step in range(3):
        set_gradients(named, step)
        optimizer.step()
        for name, parameter in named:
            average[name] = 0.9 * average[name] + 0.1 * parameter.grad
            ahead = 0.9 * average[name] + 0.1 * parameter.grad if nesterov else average[name]
            rows, cols = parameter.shape
            factor = max(1, rows / cols) ** 0.5 if scale == "spectral" else 0.2 * max(rows, cols) ** 0.5
            direction = plain_orthogonalize(ahead, table, safety)
            reference[name] = reference[name] * (1 - 0.03 * 0.2) - 0.03 * factor * direction
    for name, parameter in named:
        torch.testing.assert_close(parameter.detach(), reference[name], rtol=1e-4, atol=1e-5)


def test_bf16_step_is_as_close_to_the_fp32_reference_as_torchs_own_muon():
    mine, theirs, exact = matrices(), matrices(), matrices()
    ours = build(mine, coefficients="classic", weight_decay=0.1, scale="match_rms_adamw")
    reference = build(exact, coefficients="classic", weight_decay=0.1, scale="match_rms_adamw", ns_dtype="fp32")
    torchs = torch.optim.Muon([p for _, p in theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for named in (mine, theirs, exact):
        set_gradients(named, 0)
    for optimizer in (ours, torchs, reference):
        optimizer.step()
    for (_, a), (_, b), (_, c) in zip(mine, theirs, exact, strict=True):
        # Both round in bf16, at other places: neither may be off by much more than the other.
        assert (a - c).norm() <= 2 * (b - c).norm()
        assert (b - c).norm() < 0.05 * (c - matrices([c.shape])[0][1].detach()).norm()


@pytest.mark.parametrize(("name", "low", "high"), [("classic", 0.65, 1.25), ("polar_express", 0.85, 1.15)])
@pytest.mark.parametrize("shape", [(3, 24, 64), (3, 64, 24), (2, 32, 32)])
def test_orthogonalize_brings_singular_values_to_one_and_keeps_singular_vectors(name, low, high, shape):
    generator = torch.Generator().manual_seed(0)
    u, _, vt = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False)
    values = torch.logspace(0, -1.3, min(shape[1:]), dtype=torch.float64)
    result = orthogonalize((u @ torch.diag(values) @ vt).float(), name, 5).double()
    core = u.mT @ result @ vt.mT
    diagonal = torch.diagonal(core, dim1=-2, dim2=-1)
    assert low < diagonal.min() and diagonal.max() < high
    assert (core - torch.diag_embed(diagonal)).abs().max() < 1e-4


def test_polar_express_polynomials_map_the_whole_interval_close_to_one():
    x = torch.logspace(-2.5, 0, 20001, dtype=torch.float64) / 1.02
    for a, b, c in coefficients_of("polar_express", 5):
        x = a * x + b * x**3 + c * x**5
    # The best polynomial overshoots as much as it undershoots: a mistyped coefficient breaks the balance.
    assert 0.14 < x.max() - 1 < 0.142 and 0.14 < 1 - x.min() < 0.142


def test_a_zero_gradient_moves_nothing_and_gives_no_nan():
    named = matrices()
    before = [parameter.detach().clone() for _, parameter in named]
    optimizer = build(named)
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(torch.equal(a, p) for a, (_, p) in zip(before, named, strict=True))


def test_muon_on_a_vector_is_a_user_error_that_names_it_and_the_composite():
    named = [*matrices(), ("norm.weight", Parameter(torch.ones(8)))]
    with pytest.raises(UserError, match=r"norm\.weight.*composite"):
        build(named)


def test_compiled_step_equals_eager_and_a_new_learning_rate_does_not_recompile():
    compiled, eager = matrices([(8, 8), (8, 8)]), matrices([(8, 8), (8, 8)])
    fast, slow = build(compiled, compile=True, ns_dtype="fp32"), build(eager, ns_dtype="fp32")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for step in range(3):
            if step == 1:
                torch.compiler.set_stance("fail_on_recompile")
            for optimizer in (fast, slow):
                optimizer.param_groups[0].update(lr=0.01 * (step + 1), momentum=0.9 + 0.01 * step, weight_decay=0.1)
            set_gradients(compiled, step)
            set_gradients(eager, step)
            try:
                fast.step()
            finally:
                if step >= 1:
                    torch.compiler.set_stance("default")
            slow.step()
    for (_, a), (_, b) in zip(compiled, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_failing_compiler_is_said_and_the_step_is_taken_in_eager_mode(monkeypatch):
    def broken(graph, inputs):
        raise OSError("no compiler here")

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **keys: real(function, backend=broken, **keys))
    named, other = matrices(), matrices()
    optimizer, reference = build(named, compile=True), build(other)
    set_gradients(named, 0)
    set_gradients(other, 0)
    with pytest.warns(RuntimeWarning, match="going on without"):
        optimizer.step()
    reference.step()
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(named, other, strict=True))


def run_steps(dtype, stochastic):
    named = matrices(dtype=dtype)
    config = MuonConfig(compile=False, weight_decay=0.1)
    optimizer = Muon(config, named, roles_of(named), seed=3, stochastic_rounding=stochastic)
    for step in range(3):
        set_gradients(named, step)
        optimizer.step()
    result = {name: parameter.detach().clone() for name, parameter in named}
    return result | {name: value.clone() for name, value in optimizer.state_tensors().items()}


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    results = [run_steps(torch.float32, False), run_steps(torch.bfloat16, True)]
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_compute_bit_for_bit_what_one_computes(tmp_path):
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    alone = [run_steps(torch.float32, False), run_steps(torch.bfloat16, True)]
    for rank in range(2):
        for got, want in zip(torch.load(tmp_path / f"rank{rank}.pt"), alone, strict=True):
            different = [name for name in want if not torch.equal(got[name], want[name])]
            assert got.keys() == want.keys() and not different
