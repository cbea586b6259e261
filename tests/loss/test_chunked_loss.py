"""The chunked loss equals the full one, in value and gradient, without its memory."""

import pytest
import torch

from littlelm.loss import chunked as chunked_module
from littlelm.loss.chunked import ChunkedLoss
from littlelm.loss.configs import ChunkedLossConfig, FullLossConfig
from littlelm.loss.full import FullLoss

TOKENS, HIDDEN, VOCAB, PADDED = 50, 24, 91, 96


def make(dtype=torch.float32, weight_dtype=torch.float32, scale=0.5):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = (scale * torch.randn(PADDED, HIDDEN, generator=generator)).to(weight_dtype).requires_grad_()
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=generator)
    targets[::7] = -100
    return hidden, weight, targets


def run(loss, hidden, weight, targets, softcap, scale=0.37):
    hidden.grad = weight.grad = None
    objective, nll = loss(hidden, weight, targets, VOCAB, softcap)
    assert objective.dtype == nll.dtype == torch.float32
    (objective * scale).backward()
    return objective.detach(), nll, hidden.grad.clone(), weight.grad.clone()


def relative(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize(("chunk", "compiled"), [(16, False), ("auto", False), (16, True)])
def test_fast_path_equals_reference_chunked_equals_full_in_fp32(chunk, softcap, z_loss, compiled):
    inputs = make()
    want = run(FullLoss(FullLossConfig(z_loss=z_loss)), *inputs, softcap)
    got = run(ChunkedLoss(ChunkedLossConfig(z_loss=z_loss, chunk_tokens=chunk, compile=compiled)), *inputs, softcap)
    assert all(relative(a, b) < 1e-6 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [None, 4.0])
def test_chunked_equals_full_in_bf16_within_its_rounding(softcap, weight_dtype):
    """Both round the same logits to bf16. Then each gradient is a sum of products of which chunked rounds one factor
    (the logit's gradient, relative error at most u = 2^-9), each chunk's product (u) and the sum (u): 3 u of the sum
    of magnitudes, and so does full, at other places. In norms, where errors of random sign add as squares, 3 u is far
    above what is seen; the values are fp32 sums of identical terms."""
    inputs = make(torch.bfloat16, weight_dtype)
    want = run(FullLoss(FullLossConfig(z_loss=0.01)), *inputs, softcap)
    got = run(ChunkedLoss(ChunkedLossConfig(z_loss=0.01, chunk_tokens=16, compile=False)), *inputs, softcap)
    assert all(relative(a, b) < 1e-6 for a, b in zip(got[:2], want[:2], strict=True))
    assert all(relative(a, b) < 3 * 2**-9 for a, b in zip(got[2:], want[2:], strict=True))
    assert got[2].dtype == torch.bfloat16 and got[3].dtype == weight_dtype


@pytest.mark.parametrize("kind", ["full", "chunked"])
def test_full_and_chunked_equal_cross_entropy_written_out_in_fp64(kind):
    hidden, weight, targets = make()
    logits = 4.0 * torch.tanh(hidden.double() @ weight.double()[:VOCAB].T / 4.0)
    counted = targets != -100
    log_probability = torch.log_softmax(logits, -1)[counted, targets[counted]]
    penalty = torch.logsumexp(logits, -1)[counted].square().sum()
    want = torch.autograd.grad(-log_probability.sum() + 0.01 * penalty, [hidden, weight])
    loss = (
        FullLoss(FullLossConfig(z_loss=0.01))
        if kind == "full"
        else ChunkedLoss(ChunkedLossConfig(z_loss=0.01, chunk_tokens=16, compile=False))
    )
    objective, nll, *got = run(loss, hidden, weight, targets, 4.0, scale=1.0)
    assert nll.item() == pytest.approx(-log_probability.sum().item(), rel=1e-6)
    assert objective.item() == pytest.approx((-log_probability.sum() + 0.01 * penalty).item(), rel=1e-6)
    assert all(relative(a, b) < 1e-6 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("kind", ["full", "chunked"])
def test_padded_rows_of_the_head_change_nothing_and_get_no_gradient(kind):
    hidden, weight, targets = make()
    loss = (
        FullLoss(FullLossConfig()) if kind == "full" else ChunkedLoss(ChunkedLossConfig(chunk_tokens=16, compile=False))
    )
    before = run(loss, hidden, weight, targets, None)
    with torch.no_grad():
        weight[VOCAB:] = 50.0
    after = run(loss, hidden, weight, targets, None)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert after[3][VOCAB:].abs().max() == 0


def test_ignored_tokens_add_nothing_even_when_their_activations_are_not_finite():
    hidden, weight, targets = make()
    loss = ChunkedLoss(ChunkedLossConfig(chunk_tokens=16, compile=False, z_loss=0.01))
    objective, _, grad_hidden, _ = run(loss, hidden, weight, targets, None)
    with torch.no_grad():
        hidden[0] = float("inf")
    again, _, grad_again, _ = run(loss, hidden, weight, targets, None)
    assert torch.equal(objective, again)
    assert torch.equal(grad_hidden, grad_again) and grad_again[0].abs().max() == 0


def test_all_tokens_ignored_gives_zero():
    hidden, weight, _ = make()
    nothing = torch.full((TOKENS,), -100)
    for loss in (FullLoss(FullLossConfig()), ChunkedLoss(ChunkedLossConfig(compile=False))):
        objective, nll, *gradients = run(loss, hidden, weight, nothing, None)
        assert objective == nll == 0
        assert all(gradient.abs().max() == 0 for gradient in gradients)


def test_without_gradients_only_the_forward_products_are_computed(monkeypatch):
    inputs = make()
    loss = ChunkedLoss(ChunkedLossConfig(chunk_tokens=16, compile=False))
    want = run(loss, *inputs, 4.0)
    calls = []
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *args, **keys: calls.append(1) or real(*args, **keys))
    monkeypatch.setattr(chunked_module, "_accumulate", lambda *args, **keys: calls.append("weight"))
    with torch.no_grad():
        objective, nll = loss(*inputs, VOCAB, 4.0)
    assert calls == [1] * 4
    assert torch.equal(objective, want[0]) and torch.equal(nll, want[1])


def test_a_frozen_head_or_a_frozen_trunk_gets_no_gradient_and_costs_none():
    hidden, weight, targets = make()
    loss = ChunkedLoss(ChunkedLossConfig(chunk_tokens=16, compile=False))
    want = run(loss, hidden, weight, targets, None)
    loss(hidden, weight.detach(), targets, VOCAB)[0].backward()
    loss(hidden.detach(), weight, targets, VOCAB)[0].backward()
    assert relative(hidden.grad, want[2] / 0.37 + want[2]) < 1e-5
    assert relative(weight.grad, want[3] / 0.37 + want[3]) < 1e-5


def test_logits_of_all_tokens_never_exist(monkeypatch):
    """No tensor made on the way has N x V elements, or the rows of more than a chunk."""
    largest = []
    # The plain function: what happens inside an operator is not dispatched to the watcher.
    monkeypatch.setattr(chunked_module, "chunked_cross_entropy", chunked_module.chunked_cross_entropy._init_fn)

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    largest.append(tensor.untyped_storage().nbytes())
            return out

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(512, 4, generator=generator).requires_grad_()
    weight = torch.randn(1024, 4, generator=generator).requires_grad_()
    targets = torch.randint(0, 1024, (512,), generator=generator)
    with Watch():
        loss = ChunkedLoss(ChunkedLossConfig(chunk_tokens=32, compile=False))
        loss(hidden, weight, targets, 1024)[0].backward()
    assert largest and max(largest) == 32 * 1024 * 4


def test_it_works_inside_a_compiled_training_step_without_a_graph_break():
    hidden, weight, targets = make()
    loss = ChunkedLoss(ChunkedLossConfig(chunk_tokens=16, compile=False, z_loss=0.01))
    want = run(loss, hidden, weight, targets, 4.0)

    @torch.compile(fullgraph=True)
    def step(hidden, weight, targets, vocab_size, softcap):
        objective, nll = loss(hidden * 1.0, weight, targets, vocab_size, softcap)
        return objective, nll

    got = run(step, hidden, weight, targets, 4.0)
    assert all(relative(a, b) < 1e-6 for a, b in zip(got, want, strict=True))


def test_the_normaliser_may_be_large_without_overflow():
    hidden, weight, targets = make(scale=200.0)
    want = run(FullLoss(FullLossConfig()), hidden, weight, targets, None)
    got = run(ChunkedLoss(ChunkedLossConfig(chunk_tokens=16, compile=False)), hidden, weight, targets, None)
    assert all(torch.isfinite(value).all() for value in got)
    assert all(relative(a, b) < 1e-5 for a, b in zip(got, want, strict=True))
