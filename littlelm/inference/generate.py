"""Generation, token by token, with a KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from littlelm.errors import UserError
from littlelm.inference.cache import KVCache
from littlelm.inference.sampling import pick


def generate(
    model: Any,
    tokens: list[int],
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    stop_ids: tuple[int, ...] | list[int] = (),
    use_cache: bool = True,
) -> Iterator[int]:
    """Yield up to `max_new_tokens` ids that continue `tokens`, each as soon as it is known; ends after a stop id.

    Args:
        model: a Transformer with weights.
        tokens: the prompt, at least one id (the BOS token for an empty one).
        generator: a CPU generator; the same seed gives the same tokens. None: the global one.
        use_cache: False recomputes every position each time: the slow reference.

    Raises:
        UserError: the prompt is empty, or prompt and new tokens do not fit into the context.
    """
    limit = model.config.max_position_embeddings
    if not tokens:
        raise UserError("nothing to continue: give at least the BOS token")
    if len(tokens) + max_new_tokens > limit + 1:  # the last token is only predicted, never read
        raise UserError(
            f"{len(tokens)} prompt tokens and {max_new_tokens} new ones do not fit into the context of {limit}; "
            "shorten the prompt or ask for fewer"
        )
    device = model.head_weight.device
    capacity = min(limit, len(tokens) + max_new_tokens)
    cache = KVCache(model.config, 1, capacity, model.compute_dtype, device) if use_cache else None
    known = list(tokens)
    unread = list(tokens)
    for _ in range(max_new_tokens):
        # The mode is left before each yield: what the consumer does in between is not under it.
        with torch.inference_mode():
            read = torch.tensor([unread if cache is not None else known], dtype=torch.int64, device=device)
            logits = model.logits(model(read, cache)[0, -1])
        token = pick(logits, temperature, top_k, top_p, generator)
        yield token
        if token in stop_ids:
            return
        known.append(token)
        unread = [token]
