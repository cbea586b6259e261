"""The oracle: one item at a time, naively, with all logits. Slow, and short enough to be checked by reading.

Nothing here is shared with the engine but the bundle and the texts of the items: examples are drawn from a list that
is built each time, texts are encoded one by one, spans are found token by token, every row is fed whole.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from littlelm.errors import UserError
from littlelm.evals.core.bundle import Bundle, Task
from littlelm.evals.core.rendering import render
from littlelm.evals.core.scores import Decision, decide_options, decide_tokens, mean_loss


@dataclass(frozen=True)
class ReferenceItem:
    """Rows of one item as the reference sees them, cut to the limit, and what came of it."""

    task: Task
    index: int
    tokens: list[list[int]]
    starts: list[int]
    ends: list[int]
    losses: list[np.ndarray]  # fp32, one array a row: the losses of the span
    decision: Decision


def tokens_and_spans(
    task: Task, items: list[dict[str, Any]], index: int, tokenizer: Any
) -> tuple[list[list[int]], list[int], list[int]]:
    """Token rows of item `index` of the shuffled `items`, BOS first, and their spans [start, end); nothing cut."""
    shots = []
    if task.shots:
        generator = random.Random(1234 + index)
        shots = generator.sample([i for i in range(len(items)) if i != index], task.shots)
    texts = render(task, items[index], [items[i] for i in shots])
    rows = [[tokenizer.bos_id, *tokenizer.encode(text)] for text in texts.rows]
    ends = [len(row) for row in rows]
    if task.type == "choice":
        start = _shared(rows)
        return rows, [start] * len(rows), ends
    if task.type == "schema":
        shared = _shared([row[::-1] for row in rows])
        return rows, [end - shared for end in ends], ends
    assert texts.without is not None
    without = [tokenizer.bos_id, *tokenizer.encode(texts.without)]
    if rows[0][: len(without)] != without or len(without) == len(rows[0]):
        raise UserError(f"{task.label}, item {index}: the tokens without the continuation do not begin those with it")
    return rows, [len(without)], ends


def evaluate_item(
    model: Any, rows: list[list[int]], starts: list[int], task: Task, gold: int
) -> tuple[list[np.ndarray], Decision]:
    """Losses of each row's span, and the decision, from the full logits of the whole rows."""
    longest = max(len(row) for row in rows)
    device = model.head_weight.device
    padded = [row + [0] * (longest - len(row)) for row in rows]
    tokens = torch.tensor(padded, dtype=torch.int64, device=device)
    with torch.inference_mode():
        logits = model.logits(model(tokens))  # (rows, longest, vocab)
        # Not F.cross_entropy: over 49,152 tokens it is off by up to 2e-5 on a CPU, measured against fp64.
        of_next = logits[:, :-1].logsumexp(-1) - logits[:, :-1].gather(2, tokens[:, 1:, None]).squeeze(2)
        of_next = of_next.cpu()
        likeliest = logits.argmax(-1).cpu()
    losses = []
    for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
        losses.append(
            of_next[number, start - 1 : len(row) - 1].numpy() if start < len(row) else np.empty(0, np.float32)
        )
    if task.type != "lm":
        return losses, decide_options([mean_loss(loss) for loss in losses], gold)
    row, start = rows[0], starts[0]
    right = np.array([int(likeliest[0, t - 1]) == row[t] for t in range(start, len(row))])
    scored = logits[0, start - 1 : len(row) - 1].cpu()
    targets = tokens[0, start : len(row)].cpu().unsqueeze(1)
    others = scored.scatter(1, targets, float("-inf")).amax(1)
    gap = (scored.gather(1, targets).squeeze(1) - others).numpy()
    return losses, decide_tokens(losses[0], right, gap)


def evaluate_reference(
    model: Any,
    bundle: Bundle,
    tokenizer: Any,
    limit: int | None,
    max_per_task: int | None = None,
    indices: Callable[[str], set[int] | None] = lambda label: None,
) -> Iterator[ReferenceItem]:
    """Evaluate item after item, rows longer than `limit` losing their beginning.

    Args:
        limit: tokens of the longest row; None: whole rows.
        indices: by label, the positions (after the shuffle) of the items to evaluate; None: all.
    """
    for task in bundle.tasks:
        items = list(bundle.items(task))
        random.Random(1337).shuffle(items)
        items = items[:max_per_task]
        chosen = indices(task.label)
        for index in range(len(items)) if chosen is None else sorted(chosen):
            rows, starts, ends = tokens_and_spans(task, items, index, tokenizer)
            if limit is not None:
                crops = [max(0, len(row) - limit) for row in rows]
                rows = [row[crop:] for row, crop in zip(rows, crops, strict=True)]
                starts = [start - crop for start, crop in zip(starts, crops, strict=True)]
                ends = [end - crop for end, crop in zip(ends, crops, strict=True)]
            losses, decision = evaluate_item(model, rows, starts, task, items[index].get("gold", 0))
            yield ReferenceItem(task, index, rows, starts, ends, losses, decision)


def _shared(rows: list[list[int]]) -> int:
    count = 0
    while all(count < len(row) and row[count] == rows[0][count] for row in rows):
        count += 1
    return count
