"""The engine: packs of rows, prefixes computed once, the head applied to scored positions alone.

It equals `reference` in tokens, spans and decisions, and in fp32 in losses to 1e-5; tests compare.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from littlelm.evals.core.branches import BranchedCache
from littlelm.evals.core.packs import Pack, RowTokens
from littlelm.evals.core.scores import TokenScores
from littlelm.evals.core.work import PackQueue, gather
from littlelm.inference.cache import KVCache
from littlelm.model.embeddings import rotary_tables

PACK_TOKENS = {"cpu": 2048, "cuda": 65536}
"""Tokens of a pack: enough to fill the device, few enough that packs end together."""

GRAINS = {"cpu": 4, "cuda": 16}
"""Lengths are multiples of it: a CPU is as fast on small matrices (from 64 rows on), a GPU wants many alike."""

_LOGITS = {"cpu": 2**24, "cuda": 2**28}  # logits that are in memory at one time


@dataclass
class EngineRun:
    """What one evaluation computed, on all processes together.

    Args:
        scores: of every row that was scored.
        seconds: by pack, of the process that ran it.
        packs: how many packs each process ran.
    """

    scores: TokenScores
    seconds: dict[int, float] = field(default_factory=dict)
    packs: list[int] = field(default_factory=list)


def run_packs(
    model: Any,
    rows: RowTokens,
    packs: list[Pack],
    *,
    pad_id: int,
    world: Any = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EngineRun:
    """Score every row of the packs. Each process takes the next pack when it has finished one.

    Args:
        model: a Transformer; its mode is put back afterwards.
        pad_id: any token; it changes nothing.
        world: the processes (`rank`, `size`); None: this one alone.
        progress: hears tokens done (by this process) and in all, after each pack.
    """
    total = sum(pack.cost for pack in packs)
    longest = max((pack.prefix + pack.tail for pack in packs), default=1)
    parts: list[TokenScores] = []
    seconds: dict[int, float] = {}
    done = 0
    queue = PackQueue(len(packs), world)  # kept until all have gathered: rank 0 serves the counter
    with evaluation_mode(model), longer_context(model, longest), torch.inference_mode():
        for number in queue:
            started = time.perf_counter()
            parts.append(score_pack(model, rows, packs[number], pad_id))
            seconds[number] = time.perf_counter() - started
            done += packs[number].cost
            progress(done, total)
    gathered = gather((parts, seconds), world)
    empty = TokenScores(
        np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.float32), np.empty(0, np.bool_),
        np.empty(0, np.float32),
    )  # fmt: skip
    return EngineRun(
        scores=TokenScores.join([part for theirs, _ in gathered for part in theirs] or [empty]),
        seconds={number: spent for _, theirs in gathered for number, spent in theirs.items()},
        packs=[len(theirs) for theirs, _ in gathered],
    )


def score_pack(model: Any, rows: RowTokens, pack: Pack, pad_id: int) -> TokenScores:
    """Losses of the scored tokens of a pack's rows, fp32, and for `lm` what the likeliest token is."""
    device = model.head_weight.device
    fed = [row for family in pack.families for row in family.fed]
    tails = np.full((len(fed), pack.tail), pad_id, dtype=np.int64)
    prefixes = np.empty((len(pack.families), pack.prefix), dtype=np.int64)
    owner: list[int] = []
    first = 0  # of the family's fed rows
    scored: list[tuple[int, int]] = []  # (row, where its tail stands)
    for number, family in enumerate(pack.families):
        for place, row in enumerate(family.fed):
            tokens = rows.row(row)
            if place == 0:
                prefixes[number] = tokens[: pack.prefix]
            tail = tokens[pack.prefix : -1]
            tails[first + place, : len(tail)] = tail
        scored += [(row, first + place) for row, place in family.members]
        owner += [number] * len(family.fed)
        first += len(family.fed)
    hidden = _hidden(model, _on(prefixes, device), _on(tails, device), owner)  # (fed, tail, D)
    return _score(model, rows, pack, hidden, scored)


def _hidden(model: Any, prefixes: Tensor, tails: Tensor, owner: list[int]) -> Tensor:
    if prefixes.size(1) == 0:
        whole: Tensor = model(tails)
        return whole
    cache = KVCache(model.config, len(prefixes), prefixes.size(1), model.compute_dtype, prefixes.device)
    model(prefixes, cache)
    continued: Tensor = model(tails, BranchedCache(cache, torch.tensor(owner, device=prefixes.device)))
    return continued


def _score(model: Any, rows: RowTokens, pack: Pack, hidden: Tensor, scored: list[tuple[int, int]]) -> TokenScores:
    """Apply the head to the positions that are needed, each once, and look up what was asked of them."""
    prepared = rows.prepared
    is_lm = np.array([task.type == "lm" for task in prepared.tasks])[
        prepared.item_task[rows.row_item[[r for r, _ in scored]]]
    ]
    lengths = np.array([rows.length[row] - rows.start[row] for row, _ in scored], dtype=np.int64)
    places = np.concatenate(
        [
            place * pack.tail + np.arange(rows.start[row] - 1, rows.length[row] - 1) - pack.prefix
            for row, place in scored
        ]
    )
    targets = np.concatenate([rows.row(row)[rows.start[row] :] for row, _ in scored]).astype(np.int64)
    positions, which = np.unique(places, return_inverse=True)
    asks_gap = np.repeat(is_lm, lengths)
    flat = hidden.reshape(-1, hidden.size(-1))
    size = max(1, _LOGITS.get(flat.device.type, 2**24) // model.vocab_size)
    losses = np.empty(len(targets), dtype=np.float32)
    right = np.zeros(len(targets), dtype=np.bool_)
    gap = np.full(len(targets), np.nan, dtype=np.float32)
    for begin in range(0, len(positions), size):
        end = min(begin + size, len(positions))
        asked = np.flatnonzero((which >= begin) & (which < end))
        logits = model.logits(flat[_on(positions[begin:end], flat.device)])  # (positions, vocab) fp32
        of_position = _on(which[asked] - begin, flat.device)
        wanted = _on(targets[asked], flat.device)
        own = logits[of_position, wanted]
        losses[asked] = (torch.logsumexp(logits, -1)[of_position] - own).cpu().numpy()
        with_gap = np.flatnonzero(asks_gap[asked])
        if len(with_gap):
            chosen = _on(with_gap, flat.device)
            ours = logits[of_position[chosen]]  # a copy, which may be written into
            right[asked[with_gap]] = (ours.argmax(-1) == wanted[chosen]).cpu().numpy()
            ours.scatter_(1, wanted[chosen].unsqueeze(1), float("-inf"))
            gap[asked[with_gap]] = (own[chosen] - ours.amax(-1)).cpu().numpy()
    return TokenScores(
        rows=np.array([row for row, _ in scored], dtype=np.int64),
        at=np.concatenate(([0], np.cumsum(lengths))),
        losses=losses,
        right=right,
        gap=gap,
    )


def _on(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


@contextlib.contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """The model in evaluation mode; put back afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextlib.contextmanager
def longer_context(model: Any, length: int) -> Iterator[None]:
    """Let the model read `length` positions (policy `none`): its rotary tables grow for as long as this lasts."""
    config = model.config
    if length <= config.max_position_embeddings:
        yield
        return
    cos, sin = model.cos, model.sin
    grown = rotary_tables(length, config.width_of_head, config.rope_theta, cos.device)
    model.config = config.model_copy(update={"max_position_embeddings": length})
    model.cos, model.sin = grown
    try:
        yield
    finally:
        model.config, model.cos, model.sin = config, cos, sin
