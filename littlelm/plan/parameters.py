"""Exact parameter counts from the config alone: no torch, no allocation. A test holds them against the meta model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from littlelm.model.configs import GATE_CHANNELS, TransformerConfig, round_up


@dataclass(frozen=True)
class Row:
    """One parameter tensor, or several alike: `count` tensors of `shape`, all of one role."""

    name: str
    role: str
    shape: tuple[int, ...]
    count: int = 1
    in_matmul: bool = False

    @property
    def parameters(self) -> int:
        size = self.count
        for length in self.shape:
            size *= length
        return size


def parameter_rows(config: TransformerConfig, vocab_size: int) -> Iterator[Row]:
    """Every parameter of the model, tensors that repeat in each layer as one row."""
    padded = round_up(vocab_size, config.pad_vocab_multiple)
    width, layers = config.hidden_size, config.num_hidden_layers
    queries = config.num_attention_heads * config.width_of_head
    values = config.kv_heads * config.width_of_head
    tables = sum(config.has_value_embedding(layer) for layer in range(layers))
    yield Row("embedding", "embedding", (padded, width), in_matmul=config.tie_embeddings)
    if tables:
        yield Row("value embeddings", "value_embedding", (padded, values), tables)
    if config.norm_weight:
        yield Row("norms", "norm", (width,), 2 * layers + 1)
    yield Row("attention.q", "matrix", (queries, width), layers, True)
    yield Row("attention.k, v", "matrix", (values, width), 2 * layers, True)
    yield Row("attention.out", "matrix", (width, queries), layers, True)
    if config.value_embedding_gate:
        yield Row("attention.gate", "scalar", (config.kv_heads, min(GATE_CHANNELS, width)), tables, True)
    inputs = 2 if config.mlp == "swiglu" else 1
    yield Row("mlp.gate, up" if inputs == 2 else "mlp.up", "matrix", (config.mlp_width, width), inputs * layers, True)
    yield Row("mlp.down", "matrix", (width, config.mlp_width), layers, True)
    if config.residual_scalars:
        yield Row("residual scalars", "scalar", (layers,), 2)
    if not config.tie_embeddings:
        yield Row("head", "head", (padded, width), in_matmul=True)


def parameters_by_role(config: TransformerConfig, vocab_size: int) -> dict[str, int]:
    """Role -> number of parameters."""
    counts: dict[str, int] = {}
    for row in parameter_rows(config, vocab_size):
        counts[row.role] = counts.get(row.role, 0) + row.parameters
    return counts


def matmul_parameters(config: TransformerConfig, vocab_size: int) -> int:
    """Parameters that every token is multiplied with: matrices, gates and the head, no lookups."""
    return sum(row.parameters for row in parameter_rows(config, vocab_size) if row.in_matmul)
