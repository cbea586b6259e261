"""Best-fit-decreasing packing that throws nothing away (Ding et al., ICML 2024, arXiv:2404.10830).

A document of at least one row is cut into row-long pieces, each a row of its own, and a remainder. Remainders and
shorter documents are placed, longest first, each into the row whose free space fits it most tightly. What fits
nowhere opens a row.

The rows that stay loosely filled at the end (there are few; they hold the last and shortest pieces) are closed up:
their pieces are laid one after the other into the gaps that are left, cut where a gap ends. So padding is at most one
row a shard plus gaps too small to be worth a cut.
"""

from __future__ import annotations

import numpy as np

from littlelm.data.configs import BestFitConfig
from littlelm.data.packing.plan import Int, RowPlan

# A gap below this share of a row stays padding: filling it would cut a document for next to nothing.
_SMALLEST_GAP_SHARE = 1 / 256


class BestFit:
    """See the module; built from its config, which has no keys."""

    def __init__(self, config: BestFitConfig) -> None:
        self.config = config

    def plan(self, document_lengths: Int, row_length: int) -> RowPlan:
        """Pack documents of the given lengths (tokens, in stream order) into rows."""
        lengths = np.asarray(document_lengths, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else lengths
        whole_pieces = lengths // row_length
        full_starts = np.repeat(starts, whole_pieces) + row_length * _ranks(whole_pieces)
        remainder = lengths - whole_pieces * row_length
        item_start = starts + whole_pieces * row_length
        order = np.argsort(-remainder, kind="stable")
        order = order[remainder[order] > 0]
        bins, free = _best_fit(remainder[order].tolist(), row_length)
        pieces = [[(int(item_start[order[i]]), int(remainder[order[i]])) for i in members] for members in bins]
        split = _close_up(pieces, free, row_length)
        cut = np.flatnonzero((whole_pieces > 1) | ((whole_pieces == 1) & (remainder > 0)))
        # a document that closes several gaps is cut several times, but is one document
        owners = np.unique(np.searchsorted(starts, np.array(split, dtype=np.int64), side="right") - 1)
        documents_split = len(cut) + int(np.count_nonzero(lengths[owners] <= row_length))
        counts = np.array([len(row) for row in pieces], dtype=np.int64)
        flat = np.array([piece for row in pieces for piece in row], dtype=np.int64).reshape(-1, 2)
        first = np.concatenate([np.arange(len(full_starts) + 1), len(full_starts) + np.cumsum(counts)])
        return RowPlan(
            row_length,
            first.astype(np.int64),
            np.concatenate([full_starts, flat[:, 0]]).astype(np.int64),
            np.concatenate([np.full(len(full_starts), row_length), flat[:, 1]]).astype(np.int64),
            documents=len(lengths),
            documents_split=documents_split,
            tokens=int(lengths.sum()),
        )


def _ranks(counts: Int) -> Int:
    """0, 1, ..., count - 1 for each count, one after the other."""
    ends = np.cumsum(counts)
    ranks: Int = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return ranks


def _best_fit(lengths: list[int], row_length: int) -> tuple[list[list[int]], list[int]]:
    """Place items (longest first) into the tightest row. Returns the items of each row and its free space.

    Rows of equal free space are alike, so they wait in one stack a size; which sizes exist is one bit each of a large
    integer, and the smallest sufficient one is the lowest set bit above: a few hundred nanoseconds an item.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    stacks: list[list[int]] = [[] for _ in range(row_length + 1)]
    sizes = 0
    for item, length in enumerate(lengths):
        fitting = sizes >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = stacks[space].pop()
            if not stacks[space]:
                sizes &= ~(1 << space)
            rows[row].append(item)
        else:
            space, row = row_length, len(rows)
            rows.append([item])
            free.append(0)
        left = space - length
        free[row] = left
        if left:
            stacks[left].append(row)
            sizes |= 1 << left
    return rows, free


def _close_up(rows: list[list[tuple[int, int]]], free: list[int], row_length: int) -> list[int]:
    """Dissolve the emptiest rows into the gaps of the others, in place; returns the starts of pieces that were cut.

    As many rows are dissolved as the gaps worth filling can hold; they end up in no more than one loose row.
    """
    smallest = max(1, int(row_length * _SMALLEST_GAP_SHARE))
    by_space = sorted(range(len(rows)), key=lambda row: -free[row])  # emptiest first
    room = sum(space for space in free if space >= smallest)
    dissolved: list[int] = []
    for row in by_space:
        content = row_length - free[row]
        if free[row] < smallest or room - free[row] < content:
            break
        room -= free[row] + content
        dissolved.append(row)
    gone = set(dissolved)
    waiting = [piece for row in dissolved for piece in rows[row]]
    waiting.reverse()
    cut: list[int] = []
    for row in by_space:
        if row in gone or free[row] < smallest:
            continue
        while waiting and free[row]:
            start, length = waiting.pop()
            part = min(length, free[row])
            rows[row].append((start, part))
            free[row] -= part
            if part < length:
                cut.append(start)
                waiting.append((start + part, length - part))
    assert not waiting
    for row in sorted(gone, reverse=True):
        del rows[row], free[row]
    return cut
