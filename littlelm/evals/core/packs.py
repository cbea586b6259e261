"""The work of an evaluation, cut into packs of near-equal cost that any process can take.

A pack is one prefix length, some families and their tails. The rows of a family share their first tokens: those are
computed once, kept as keys and values, and every different tail continues them. A prefix is rounded down to a multiple
of a grain, so that families of one length are computed side by side without padding in front, and there are few shapes;
what is left of it is repeated in every tail. Tails are padded behind, which a causal model cannot see.

The last token of a row is predicted and never read, so options of one token (A, B, C, D) are one row.

Packs depend on the rows, the limit and the size of a pack, never on the number of processes.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from littlelm.evals.core.cuts import Cuts
from littlelm.evals.core.prepared import PreparedRows
from littlelm.evals.core.spans import Tokens, common_prefix

GRAIN = 16
"""Lengths of prefixes and tails are multiples of this many tokens, unless told otherwise."""

_OVERHEAD = 16  # tokens that a prefix of its own must save at least: two passes cost more than one
_SAME_TEXT = 48  # first tokens by which items of a task without examples are taken to share a text
_MAX_FAMILY = 64  # rows


@dataclass(frozen=True)
class Family:
    """Rows that share their first `prefix` tokens.

    Args:
        prefix: tokens computed once; 0: nothing is shared.
        fed: rows whose tokens are fed, no two of them the same but for the last token.
        members: (row, which of `fed` holds its tokens) of every row that is scored.
    """

    prefix: int
    fed: tuple[int, ...]
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Pack:
    """Families of one prefix length.

    Args:
        prefix: tokens of each prefix.
        families: the families.
        tail: tokens of each tail, padding included.
        cost: tokens computed, padding included.
    """

    prefix: int
    families: tuple[Family, ...]
    tail: int
    cost: int


class RowTokens:
    """Rows of the preparation as a model gets them: cut to the limit."""

    def __init__(self, prepared: PreparedRows, cuts: Cuts):
        self.prepared = prepared
        self.crop = cuts.crop
        self.limit = cuts.limit
        self.row_item = prepared.row_item
        self.length = prepared.row_length - cuts.crop
        self.start = prepared.span_start - cuts.crop

    def row(self, row: int) -> Tokens:
        """All tokens of a row."""
        return self.prepared.row(row, int(self.row_item[row]))[self.crop[row] :]

    def is_empty(self, row: int) -> bool:
        """Whether its span holds nothing."""
        return bool(self.start[row] >= self.length[row])


def plan_packs(rows: RowTokens, items: Iterable[int], pack_tokens: int, grain: int = GRAIN) -> list[Pack]:
    """Packs of about `pack_tokens` for some items, the costliest first, so that processes end together.

    Rows with an empty span are in no pack: there is nothing to compute. A small `grain` repeats and pads fewer tokens,
    a large one gives fewer shapes and more families of one length, side by side.
    """
    groups: dict[int, list[Family]] = defaultdict(list)
    for members in _gather(rows, items):
        for family in _families(rows, members, grain):
            groups[family.prefix].append(family)
    packs = [pack for prefix in sorted(groups) for pack in _fill(rows, prefix, groups[prefix], pack_tokens, grain)]
    return sorted(packs, key=lambda pack: -pack.cost)


def _gather(rows: RowTokens, items: Iterable[int]) -> list[list[int]]:
    """Rows that may share a beginning: those of an item; and items on one text, where no examples stand before it."""
    prepared = rows.prepared
    item_task = prepared.item_task
    gathered: list[list[int]] = []
    texts: dict[tuple[int, bytes], list[int]] = {}
    for item in items:
        members = [
            row for row in range(prepared.item_rows[item], prepared.item_rows[item + 1]) if not rows.is_empty(row)
        ]
        if not members:
            continue
        task = int(item_task[item])
        # Items with examples each draw their own, and share nothing worth looking for.
        if prepared.tasks[task].shots or rows.length[members[0]] <= _SAME_TEXT or rows.crop[members].any():
            gathered.append(members)
            continue
        key = (task, rows.row(members[0])[:_SAME_TEXT].tobytes())
        known = texts.get(key)
        if known is None or len(known) + len(members) > _MAX_FAMILY:
            texts[key] = known = []
            gathered.append(known)
        known.extend(members)
    return gathered


def _families(rows: RowTokens, members: Sequence[int], grain: int) -> list[Family]:
    """Split rows, sorted by their tokens, into families such that the fewest tokens are computed."""
    tokens = {row: rows.row(row)[:-1] for row in members}  # the last is never read
    ordered = sorted(members, key=lambda row: (tokens[row].astype(">u4").tobytes(), row))
    fed: list[int] = []  # no two the same
    same: dict[int, list[int]] = {}
    for row in ordered:
        if fed and np.array_equal(tokens[row], tokens[fed[-1]]):
            same[fed[-1]].append(row)
        else:
            fed.append(row)
            same[row] = [row]
    # A prefix may not reach the position before a row's first scored token: that one's logits are needed.
    allowed = [min(int(rows.start[row]) for row in same[first]) - 1 for first in fed]
    shared = [common_prefix([tokens[a], tokens[b]]) for a, b in itertools.pairwise(fed)]
    best: list[tuple[int, int, int]] = [(0, 0, 0)]  # cost of the first rows, where their last family begins, its prefix
    for end in range(1, len(fed) + 1):
        alone = len(tokens[fed[end - 1]])
        options = [(best[end - 1][0] + alone, end - 1, 0)]
        prefix, total = allowed[end - 1], alone
        for begin in range(end - 2, -1, -1):
            prefix = min(prefix, allowed[begin], shared[begin])
            total += len(tokens[fed[begin]])
            rounded = prefix // grain * grain
            if rounded == 0:
                break
            cost = rounded + total - (end - begin) * rounded + _OVERHEAD
            options.append((best[begin][0] + cost, begin, rounded))
        best.append(min(options))
    families = []
    end = len(fed)
    while end:
        _, begin, prefix = best[end]
        part = fed[begin:end]
        belongs = tuple((row, number) for number, first in enumerate(part) for row in same[first])
        families.append(Family(prefix, tuple(part), belongs))
        end = begin
    return families


def _fill(rows: RowTokens, prefix: int, families: list[Family], pack_tokens: int, grain: int) -> list[Pack]:
    """Packs of families of one prefix length, longest tails together."""
    longest = {family: max(int(rows.length[row]) - 1 - prefix for row in family.fed) for family in families}
    packs: list[Pack] = []
    held: list[Family] = []
    for family in sorted(families, key=lambda family: (-longest[family], family.fed)):
        if held and _cost(rows, prefix, [*held, family], longest[held[0]], grain) > pack_tokens:
            packs.append(_pack(rows, prefix, held, longest[held[0]], grain))
            held = []
        held.append(family)
    if held:
        packs.append(_pack(rows, prefix, held, longest[held[0]], grain))
    return packs


def _tail(rows: RowTokens, prefix: int, longest: int, grain: int) -> int:
    rounded = -(-longest // grain) * grain
    return rounded if rows.limit is None else max(longest, min(rounded, rows.limit - prefix))


def _cost(rows: RowTokens, prefix: int, families: Sequence[Family], longest: int, grain: int) -> int:
    tails = sum(len(family.fed) for family in families)
    return len(families) * prefix + tails * _tail(rows, prefix, longest, grain)


def _pack(rows: RowTokens, prefix: int, families: list[Family], longest: int, grain: int) -> Pack:
    tail, cost = _tail(rows, prefix, longest, grain), _cost(rows, prefix, families, longest, grain)
    return Pack(prefix, tuple(families), tail, cost)


def naive_tokens(rows: RowTokens, items: NDArray[np.int64]) -> int:
    """Tokens of all rows of some items: what is fed without sharing anything."""
    return int(sum(rows.length[rows.prepared.item_rows[i] : rows.prepared.item_rows[i + 1]].sum() for i in items))
