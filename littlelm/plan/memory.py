"""Bytes: what is exact (weights, gradients, optimizer state) and what is an estimate (activations)."""

from __future__ import annotations

from typing import Any

from littlelm.config.base import ComponentConfig
from littlelm.model.configs import TransformerConfig
from littlelm.plan.parameters import parameters_by_role

_MASTER_BYTES = {"fp32": 4, "bf16": 2, "bf16_stochastic": 2}
# Bytes of optimizer state a parameter; states are fp32 whatever the weights are.
_STATE_BYTES = {"adamw": 8, "muon": 4}


def state_bytes(
    model: TransformerConfig, vocab_size: int, optimizer: ComponentConfig, precision: ComponentConfig
) -> dict[str, int | None]:
    """Bytes of weights, gradients and optimizer state of the whole model, each process holding all of it (DDP).

    `optimizer` is None when a component is not one of ours, so its state is unknown.
    """
    counts = parameters_by_role(model, vocab_size)
    total = sum(counts.values())
    each = _MASTER_BYTES.get(getattr(precision, "master", "fp32"), 4)
    state: int | None = 0
    for role, count in counts.items():
        part: Any = getattr(optimizer, "for_role", lambda _: optimizer)(role)
        size = _STATE_BYTES.get(part.name) if part is not None else None
        state = None if state is None or size is None else state + size * count
    return {"weights": total * each, "gradients": total * each, "optimizer": state}


def activation_bytes_per_row(model: TransformerConfig, sequence_length: int, element_bytes: int) -> int:
    """Estimated bytes that the forward pass of one row keeps for the backward pass, without recomputation.

    Per token and layer: the stream and both normalised inputs, queries, keys, values and the attention's output, the
    MLP's hidden values before and after the activation; and once the embedding, the final hidden state and its
    gradient in fp32. The logits are the loss's own affair: `chunked` holds a chunk of them.
    """
    width = model.hidden_size
    heads = (2 * model.num_attention_heads + 2 * model.kv_heads) * model.width_of_head
    hidden = (3 if model.mlp == "swiglu" else 2) * model.mlp_width
    per_token = model.num_hidden_layers * (4 * width + heads + hidden) * element_bytes
    return sequence_length * (per_token + 4 * width * 4)
