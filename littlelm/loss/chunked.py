"""Cross-entropy chunk by chunk: the logits of all tokens never exist, their gradient is taken while they do.

The gradient of the loss with respect to a logit needs nothing but the logit's own row. So the forward pass computes a
chunk of logits, turns them in place into their gradient, multiplies that into the gradients of `hidden` and of the
head, and reuses the memory for the next chunk; backward only scales. Memory falls from several (N, V) tensors to one
(chunk, V); no product is computed twice.

Where the time goes, 4,096 tokens x 50,304 x 384 in bf16 on 2 cores, chunks of 1,024: 567 of 656 ms are the three
matrix products, 70 the softmax, 14 the accumulation of the head's gradient, which is why chunks must not be small.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from littlelm.compiled import CompiledOrEager
from littlelm.loss.configs import ChunkedLossConfig
from littlelm.loss.full import IGNORE

# Logits of an eager chunk that are in fp32 at one time: what stays in the cache of a core, or fills a GPU.
_EAGER_ELEMENTS = {"cpu": 2**20, "cuda": 2**27}

# A chunk costs one pass over the head's gradient, whatever its size: on the CPU 1,024 tokens make that 2 % of the time.
_AUTO_CHUNK_TOKENS = {"cpu": 1024, "cuda": 4096}


class Gradients(NamedTuple):
    """What a pass over the chunks gives: per-token values and, where asked for, the gradients of their sum."""

    objective: Tensor  # (N,) fp32
    nll: Tensor  # (N,) fp32
    hidden: Tensor  # (N, D) in the dtype of hidden, or empty
    weight: Tensor  # (V_padded, D) in the dtype of the weight, or empty


def _squash(logits: Tensor, softcap: float) -> tuple[Tensor, Tensor | None]:
    """softcap * tanh(logits / softcap) in fp32 and its slope; a softcap of 0 is none.

    Written with tanh(x) = 1 - 2 / (1 + exp(2 x)): its slope needs no second function, and on the CPU tanh costs four
    times an exp. Near 0 the value is off by up to 2e-7 x softcap, absolutely.
    """
    values = logits.float()
    if not softcap:
        return values, None
    half = 1.0 / (1.0 + torch.exp(values * (2.0 / softcap)))  # (1 - tanh) / 2
    return softcap - (2.0 * softcap) * half, 4.0 * half * (1.0 - half)


class _Statistics(NamedTuple):
    """What one pass over the rows of a chunk finds, fp32, (C,) or (C, 1)."""

    objective: Tensor  # (C,)
    nll: Tensor  # (C,)
    normalizer: Tensor  # (C, 1), log sum exp
    scale: Tensor  # (C, 1), what a probability counts in the gradient: 0 in a row that is not counted
    target_gradient: Tensor  # (C, 1), d objective / d logit of the target


def _statistics(logits: Tensor, targets: Tensor, softcap: float, z_loss: float) -> tuple[Tensor, ...]:
    """The fields of `_Statistics` for `logits` (C, V); a row whose target is IGNORE gives 0."""
    values, _ = _squash(logits, softcap)
    if 0 < softcap <= 40:
        # A bound is as good as the maximum, and costs no pass; a larger one would underflow: exp(-2 x 40) does not.
        largest = torch.full_like(values[:, :1], softcap)
    else:
        largest = values.amax(dim=1, keepdim=True)
    normalizer = largest + (values - largest).exp().sum(dim=1, keepdim=True).log()  # (C, 1)
    counted = (targets != IGNORE).unsqueeze(1)
    # The target's own logit is squashed again: reading it out of `values` would make them a tensor in memory.
    target, slope = _squash(logits.gather(1, targets.clamp(min=0).unsqueeze(1)), softcap)  # (C, 1)
    nll = torch.where(counted, normalizer - target, 0.0)
    objective = nll + torch.where(counted, z_loss * normalizer.square(), 0.0) if z_loss else nll
    scale = torch.where(counted, 1.0 + 2.0 * z_loss * normalizer, 0.0)
    target_gradient = torch.where(counted, (target - normalizer).exp() * scale - 1.0, 0.0)
    if slope is not None:
        target_gradient = target_gradient * slope
    return objective.squeeze(1), nll.squeeze(1), normalizer, scale, target_gradient


def _to_gradient(
    logits: Tensor, targets: Tensor, normalizer: Tensor, scale: Tensor, target_gradient: Tensor, softcap: float
) -> None:
    """`logits` (C, V) become d objective / d logits, in place and in one pass."""
    values, slope = _squash(logits, softcap)
    gradient = (values - normalizer).exp() * scale
    if slope is not None:
        gradient = gradient * slope
    columns = torch.arange(logits.size(1), dtype=torch.int32, device=logits.device)
    gradient = torch.where(columns == targets.to(torch.int32).unsqueeze(1), target_gradient, gradient)
    logits.copy_(torch.where(scale != 0, gradient, 0.0))


# Two graphs and not one: in one, the compiler keeps the fp32 values between the passes in memory, 2.5x the time.
_compiled_statistics = CompiledOrEager(_statistics, enabled=True)
_compiled_to_gradient = CompiledOrEager(_to_gradient, enabled=True)


def _rows(
    logits: Tensor, targets: Tensor, softcap: float, z_loss: float, with_gradient: bool, compiled: bool
) -> tuple[Tensor, Tensor]:
    """Objective and nll of each row of `logits` (C, V), (C,) fp32 each; with_gradient: logits become d objective."""
    if not compiled:
        return _rows_in_blocks(logits, targets, softcap, z_loss, with_gradient)
    key = (*logits.shape, logits.stride(), logits.dtype, logits.device, softcap, z_loss)
    found = _Statistics(*_compiled_statistics(key, logits, targets, softcap, z_loss))
    if with_gradient:
        _compiled_to_gradient(key[:-1], logits, targets, found.normalizer, found.scale, found.target_gradient, softcap)
    return found.objective, found.nll


def _rows_in_blocks(
    logits: Tensor, targets: Tensor, softcap: float, z_loss: float, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """`_rows` in eager mode, a few rows at a time: its fp32 temporaries are larger than the chunk."""
    size = max(1, _EAGER_ELEMENTS.get(logits.device.type, 2**24) // logits.size(1))
    parts = []
    for rows, row_targets in zip(torch.split(logits, size), torch.split(targets, size), strict=True):
        found = _Statistics(*_statistics(rows, row_targets, softcap, z_loss))
        if with_gradient:
            _to_gradient(rows, row_targets, found.normalizer, found.scale, found.target_gradient, softcap)
        parts.append(found)
    return torch.cat([each.objective for each in parts]), torch.cat([each.nll for each in parts])


@torch.library.custom_op("littlelm::chunked_cross_entropy", mutates_args=())
def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab_size: int,
    softcap: float,
    z_loss: float,
    chunk_tokens: int,
    compiled: bool,
    hidden_gradient: bool,
    weight_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of `Gradients`. An operator of its own, so that a compiled training step neither unrolls the chunks
    nor copies what is updated in place."""
    tokens, size = hidden.size(0), min(chunk_tokens, _power_of_two_from(hidden.size(0)))
    with_gradient = hidden_gradient or weight_gradient
    cast = weight.to(hidden.dtype)  # (V_padded, D), once and not once a chunk
    logits = hidden.new_empty((size, weight.size(0)))
    objective = hidden.new_empty(tokens, dtype=torch.float32)
    nll = torch.empty_like(objective)
    grad_hidden = torch.empty_like(hidden) if hidden_gradient else hidden.new_empty(0)
    grad_weight = torch.empty_like(weight, dtype=torch.float32) if weight_gradient else weight.new_empty(0)
    product = torch.empty_like(cast) if weight_gradient and hidden.dtype != torch.float32 else None
    chunk_targets = torch.full_like(targets[:1], IGNORE).repeat(size)
    for start in range(0, tokens, size):
        stop = min(start + size, tokens)
        count = stop - start
        torch.mm(hidden[start:stop], cast.t(), out=logits[:count])  # (C, V_padded)
        # A last chunk that is not full runs in the shape of the others; what its other rows give is not read.
        chunk_targets[:count].copy_(targets[start:stop])
        values = _rows(logits[:, :vocab_size], chunk_targets, softcap, z_loss, with_gradient, compiled)
        objective[start:stop].copy_(values[0][:count])
        nll[start:stop].copy_(values[1][:count])
        gradient = logits[:count]  # (C, V_padded), d objective / d logits from here on
        gradient[:, vocab_size:].zero_()
        if hidden_gradient:
            torch.mm(gradient, cast, out=grad_hidden[start:stop])
        if weight_gradient:
            _accumulate(grad_weight, gradient.t(), hidden[start:stop], product, first=start == 0)
    return objective, nll, grad_hidden, grad_weight.to(weight.dtype)


@chunked_cross_entropy.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab_size: int,
    softcap: float,
    z_loss: float,
    chunk_tokens: int,
    compiled: bool,
    hidden_gradient: bool,
    weight_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    per_token = hidden.new_empty(hidden.size(0), dtype=torch.float32)
    grad_hidden = torch.empty_like(hidden) if hidden_gradient else hidden.new_empty(0)
    grad_weight = torch.empty_like(weight) if weight_gradient else weight.new_empty(0)
    return per_token, torch.empty_like(per_token), grad_hidden, grad_weight


def _power_of_two_from(tokens: int) -> int:
    """The smallest power of two that is at least `tokens`: few shapes, few graphs."""
    return 1 << max(0, tokens - 1).bit_length()


def _accumulate(total: Tensor, left: Tensor, right: Tensor, product: Tensor | None, *, first: bool) -> None:
    """total (fp32) += left @ right, or = when `first`; `product` is memory for it where it is not fp32 itself."""
    if product is None:
        total.addmm_(left, right, beta=0.0 if first else 1.0)
        return
    torch.mm(left, right, out=product)
    if first:
        total.copy_(product)
    else:
        total.add_(product)


class _Sum(torch.autograd.Function):
    """Sums over the tokens whose gradients are known when the forward pass ends."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, hidden: Tensor, weight: Tensor, targets: Tensor, *options: float
    ) -> tuple[Tensor, Tensor]:
        vocab_size, softcap, z_loss, chunk_tokens, compiled, hidden_gradient, weight_gradient = options
        values = Gradients(
            *chunked_cross_entropy(
                hidden,
                weight,
                targets,
                int(vocab_size),
                softcap,
                z_loss,
                int(chunk_tokens),
                bool(compiled),
                bool(hidden_gradient),
                bool(weight_gradient),
            )
        )
        ctx.save_for_backward(values.hidden, values.weight)
        objective_sum, nll_sum = values.objective.sum(), values.nll.sum()
        ctx.mark_non_differentiable(nll_sum)
        return objective_sum, nll_sum

    @staticmethod
    def backward(ctx, of_objective: Tensor, of_nll: Tensor):  # type: ignore[no-untyped-def]
        hidden, weight = ctx.saved_tensors
        grad_hidden = hidden * of_objective.to(hidden.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = weight * of_objective.to(weight.dtype) if ctx.needs_input_grad[1] else None
        return grad_hidden, grad_weight, *[None] * 8


class ChunkedLoss(nn.Module):
    """The values and gradients of `FullLoss` from logits of a chunk of tokens at a time, on any device.

    Extra memory: chunk x V_padded in the dtype of `hidden`, and the two gradients. The head's gradient is accumulated
    in fp32. Without gradients (under no_grad) only the forward products are computed.
    """

    def __init__(self, config: ChunkedLossConfig) -> None:
        super().__init__()
        self.z_loss = config.z_loss
        self.chunk_tokens = config.chunk_tokens
        self.compiled = config.compile

    def forward(
        self, hidden: Tensor, head_weight: Tensor, targets: Tensor, vocab_size: int, softcap: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """(objective_sum, nll_sum), fp32 scalars; only the first is differentiable, once.

        Args:
            hidden: (N, D), fp32 or bf16.
            head_weight: (V_padded, D), any float dtype; rows from vocab_size on take no part.
            targets: (N,) int64, -100 = not counted.
            vocab_size: number of real tokens.
            softcap: None = none.
        """
        chunk_tokens = self.chunk_tokens
        if chunk_tokens == "auto":
            chunk_tokens = _AUTO_CHUNK_TOKENS.get(hidden.device.type, 1024)
        grad = torch.is_grad_enabled()
        sums: tuple[Tensor, Tensor] = _Sum.apply(  # type: ignore[no-untyped-call]
            hidden,
            head_weight,
            targets,
            vocab_size,
            softcap or 0.0,
            self.z_loss,
            chunk_tokens,
            self.compiled,
            grad and hidden.requires_grad,
            grad and head_weight.requires_grad,
        )
        return sums
