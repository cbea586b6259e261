"""`little-lm sample`: continue prompts, printing tokens as they come."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from littlelm.errors import UserError


def stream_samples(
    run: Path,
    prompts: list[str],
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> None:
    """Print each prompt and its continuation; prompts come from the arguments, or from standard input."""
    import torch

    from littlelm.inference import context_of, generate, note_on_speed
    from littlelm.inference.weights import cast_weights
    from littlelm.train.load_model import load_model

    loaded = load_model(run)
    cast_weights(loaded.model)
    if not prompts:
        prompts = [""] if sys.stdin.isatty() else [sys.stdin.read().rstrip("\n")]
    tokenizer = loaded.tokenizer
    limit = context_of(loaded.model)
    sys.stderr.write(f"{loaded.checkpoint} (step {loaded.step})\n")
    note = note_on_speed(loaded.model)
    if note is not None:
        sys.stderr.write(f"{note}\n")
    for prompt in prompts:
        tokens = [tokenizer.bos_id, *tokenizer.encode(prompt)]
        if limit is not None and len(tokens) >= limit:
            raise UserError(f"the prompt has {len(tokens)} tokens, the model's context is {limit}; shorten the prompt")
        started, count = time.perf_counter(), 0
        sys.stdout.write(prompt)
        generated: list[int] = []
        shown = ""
        for token in generate(
            loaded.model,
            tokens,
            max_new_tokens=max_new_tokens if limit is None else min(max_new_tokens, limit - len(tokens)),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=torch.Generator().manual_seed(seed),
            stop_ids=[tokenizer.bos_id],
            context=loaded.config.data.sequence_length,
        ):
            count += 1
            if token == tokenizer.bos_id:
                break
            generated.append(token)
            text = tokenizer.decode(generated)
            if not text.endswith("\ufffd"):  # half of a multi-byte character: wait for the rest
                sys.stdout.write(text[len(shown) :])
                sys.stdout.flush()
                shown = text
        sys.stdout.write(tokenizer.decode(generated)[len(shown) :] + "\n")
        seconds = time.perf_counter() - started
        sys.stderr.write(f"{count} tokens, {count / max(seconds, 1e-9):.1f} tokens/s\n")
