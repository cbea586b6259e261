"""Generation, token by token, with a KV cache."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from littlelm.errors import UserError
from littlelm.inference.cache import KVCache
from littlelm.inference.sampling import pick
from littlelm.model.configs import TransformerConfig


def context_of(model: Any) -> int | None:
    """The most positions a model reads; None for one of a user's own that names no limit."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def takes_cache(model: Any) -> bool:
    """Whether `forward(tokens, cache)` works with a `KVCache`, whose shape only a transformer's config tells."""
    config = getattr(model, "config", None)
    return isinstance(config, TransformerConfig) and "cache" in inspect.signature(model.forward).parameters


def note_on_speed(model: Any) -> str | None:
    """What to say before generating with a model that has to read everything again for each token."""
    if takes_cache(model):
        return None
    return "this model's forward takes no cache: all positions are computed again for each new token, which is slow"


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
    context: int | None = None,
) -> Iterator[int]:
    """Yield up to `max_new_tokens` ids that continue `tokens`, each as soon as it is known; ends after a stop id.

    Args:
        model: a Transformer with weights, or a model of a user's own. One whose forward takes no cache reads all
            positions again for each token.
        tokens: the prompt, at least one id (the BOS token for an empty one).
        generator: a CPU generator; the same seed gives the same tokens. None: the global one.
        use_cache: False recomputes every position each time: the slow reference.
        context: the last positions that a model without a limit of its own reads (it was trained with as many);
            None: all.

    Raises:
        UserError: the prompt is empty, or prompt and new tokens do not fit into the context.
    """
    limit = context_of(model)
    if not tokens:
        raise UserError("nothing to continue: give at least the BOS token")
    if limit is not None and len(tokens) + max_new_tokens > limit + 1:  # the last token is only predicted, never read
        raise UserError(
            f"{len(tokens)} prompt tokens and {max_new_tokens} new ones do not fit into the context of {limit}; "
            "shorten the prompt or ask for fewer"
        )
    device = model.head_weight.device
    cache = None
    if use_cache and takes_cache(model):
        cache = KVCache(model.config, 1, len(tokens) + max_new_tokens - 1, model.compute_dtype, device)
    first = 0 if limit is not None or context is None else -context
    known = list(tokens)
    unread = list(tokens)
    for _ in range(max_new_tokens):
        # The mode is left before each yield: what the consumer does in between is not under it.
        with torch.inference_mode():
            read = torch.tensor([known[first:] if cache is None else unread], dtype=torch.int64, device=device)
            hidden = model(read) if cache is None else model(read, cache)
            logits = model.logits(hidden[0, -1])
        token = pick(logits, temperature, top_k, top_p, generator)
        yield token
        if token in stop_ids:
            return
        known.append(token)
        unread = [token]
