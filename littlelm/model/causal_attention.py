"""Causal attention whose backward pass runs at the speed of matrix products on a CPU with bf16 units.

PyTorch's CPU kernel for the backward of scaled dot-product attention works in tiles of 32 queries, too small for the
tile units (AMX): it reaches a tenth of their rate. The same gradient in blocks of 128 or more queries, each block five
batched products and one fused pass over the probabilities, takes half the time (benchmarks/attention.py). The forward
pass is PyTorch's own and its output bit-identical.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from littlelm.compiled import CompiledOrEager

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v with position i seeing positions up to i.

    Args:
        q: (B, heads, T, head_dim).
        k, v: (B, kv_heads, T, head_dim), kv_heads a divisor of heads.

    Returns:
        (B, heads, T, head_dim), the dtype of q: `F.scaled_dot_product_attention`. In a compiled training step on a
        CPU, in bf16, its backward is the one of this module.
    """
    grouped = q.size(1) != k.size(1)
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.compiler.is_compiling() and q.requires_grad:
        repeats = q.size(1) // k.size(1)
        output: Tensor = _CausalAttention.apply(q, k, v, repeats)  # type: ignore[no-untyped-call]
        return output
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, q: Tensor, k: Tensor, v: Tensor, repeats: int) -> Tensor:
        expanded = (each.repeat_interleave(repeats, dim=1) if repeats > 1 else each for each in (k, v))
        output, logsumexp = _flash(q, *expanded, 0.0, True)  # (B, heads, T, head_dim), (B, heads, T) fp32
        ctx.save_for_backward(q, k, v, output, logsumexp)
        result: Tensor = output
        return result

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return *causal_attention_backward(grad, *ctx.saved_tensors), None


def query_block(length: int) -> int:
    """Queries a block, by measurement: of 512, 256 (of 256, 128); more in longer rows, for at most eight blocks."""
    return max(128, min(256, length // 2), -(-length // 8))


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v (Dao et al. 2022, arXiv:2205.14135, appendix B.2), a block of queries at a time.

    The query heads that share a key head stand below each other: one product serves them all.
    """
    batch, heads, length, head_dim = q.shape
    kv_heads = k.size(1)
    shared, stacks = heads // kv_heads, batch * kv_heads
    scale = 1.0 / math.sqrt(head_dim)
    rows = (stacks, shared, length, 1)
    delta = (grad.float() * output.float()).sum(-1).reshape(rows)  # the softmax's inner product, from its result
    logsumexp = logsumexp.reshape(rows)
    grad, q = (each.reshape(stacks, shared, length, head_dim) for each in (grad, q))
    k, v = (each.reshape(stacks, length, head_dim) for each in (k, v))
    positions = torch.arange(length, dtype=torch.int32, device=q.device)
    grad_q, grad_k, grad_v = [], None, None
    block = query_block(length)
    for start in reversed(range(0, length, block)):  # the last block sees all keys: its gradients hold the others'
        stop = min(start + block, length)
        flat = (stacks, shared * (stop - start), head_dim)
        square = (stacks, shared, stop - start, stop)
        block_q, block_grad = q[:, :, start:stop].reshape(flat), grad[:, :, start:stop].reshape(flat)
        scores = torch.bmm(block_q, k[:, :stop].transpose(1, 2)).view(square).float() * scale
        seen = positions[:stop] <= positions[start:stop].unsqueeze(1)
        weights = torch.where(seen, (scores - logsumexp[:, :, start:stop]).exp(), 0.0)
        of_weights = torch.bmm(block_grad, v[:, :stop].transpose(1, 2)).view(square).float()
        of_scores = (weights * (of_weights - delta[:, :, start:stop]) * scale).to(q.dtype).flatten(1, 2)
        grad_q.append(torch.bmm(of_scores, k[:, :stop]).view(stacks, shared, stop - start, head_dim))
        of_k = torch.bmm(of_scores.transpose(1, 2), block_q).float()
        of_v = torch.bmm(weights.to(q.dtype).flatten(1, 2).transpose(1, 2), block_grad).float()
        missing = (0, 0, 0, length - stop)
        grad_k = of_k if grad_k is None else grad_k + F.pad(of_k, missing)
        grad_v = of_v if grad_v is None else grad_v + F.pad(of_v, missing)
    assert grad_k is not None and grad_v is not None
    kv_shape = (batch, kv_heads, length, head_dim)
    return (
        torch.cat(grad_q[::-1], dim=2).view(batch, heads, length, head_dim),
        grad_k.to(k.dtype).view(kv_shape),
        grad_v.to(v.dtype).view(kv_shape),
    )


_compiled_backward = CompiledOrEager(_backward, enabled=True)


@torch.library.custom_op("littlelm::causal_attention_backward", mutates_args=())
def causal_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from the forward's output (B, heads, T, head_dim) and logsumexp (B, heads, T) fp32.

    An operator of its own, so that the layers of a compiled model share one graph of it.
    """
    arguments = (grad, q, k, v, output, logsumexp)
    key = tuple((each.shape, each.stride(), each.dtype) for each in arguments)
    found: tuple[Tensor, Tensor, Tensor] = _compiled_backward(key, *arguments)
    return found


@causal_attention_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (q, k, v))  # type: ignore[return-value]
