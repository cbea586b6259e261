"""Packing plans of prepared shards: made once per packing config and row length, kept beside the shards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.data.files import commit, write_json
from littlelm.data.packing.plan import RowPlan, summarise
from littlelm.data.shards import Digests, Shard
from littlelm.data.validation import excluded

_ARRAYS = ("first", "start", "length")


def around_excluded(plan: RowPlan, lengths: NDArray[np.int64], mask: NDArray[np.bool_]) -> RowPlan:
    """Move a plan from the stream without the excluded documents to the stream that still holds them.

    A piece that crosses an excluded document is cut there.
    """
    if not mask.any():
        return plan
    ends = np.cumsum(np.where(mask, 0, lengths))  # positions in the stream without them
    breaks = ends[mask]  # where each excluded document was taken out
    removed = np.cumsum(lengths[mask])
    first, start, length = plan.first, plan.start, plan.length
    inside = []
    order = np.argsort(start, kind="stable")
    for position in np.unique(breaks):
        candidate = int(np.searchsorted(start[order], position, side="right")) - 1
        piece = int(order[candidate]) if candidate >= 0 else -1
        if piece >= 0 and start[piece] < position < start[piece] + length[piece]:
            inside.append((piece, int(position)))
    for piece, position in sorted(inside, reverse=True):
        head = position - int(start[piece])
        tail = int(length[piece]) - head
        start = np.insert(start, piece + 1, position)
        length = np.insert(length, piece + 1, tail)
        length[piece] = head
        first = first + (first > piece)
    before = np.searchsorted(breaks, start, side="right")
    shift = np.concatenate([[0], removed])[before]
    return replace(plan, first=first, start=start + shift, length=length)


def plan_key(packing: ComponentConfig, row_length: int) -> str:
    """Name of the directory of a packing's plans."""
    text = json.dumps([packing.name, packing.model_dump(), row_length], sort_keys=True)
    return f"{packing.name}-{row_length}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Plans:
    """The memory-mapped plans of all shards, and what they achieved."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        self.report: dict[str, Any] = json.loads((directory / "report.json").read_text())
        self.arrays = [
            {array: np.load(directory / f"{name}.{array}.npy", mmap_mode="r") for array in _ARRAYS} for name in names
        ]
        self.filled = [np.load(directory / f"{name}.filled.npy", mmap_mode="r") for name in names]


def make_plans(directory: Path, shards: list[Shard], validation: Digests, packing: ComponentConfig, row: int) -> Plans:
    """Open the plans of a packing, making them first when they are not there."""
    target = directory / "plans" / plan_key(packing, row)
    names = [shard.entry["name"] for shard in shards]
    if not (target / "report.json").is_file():
        packer = registry.build(packing)
        temporary = target.with_name(f".tmp-{target.name}-{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        plans = []
        for shard, name in zip(shards, names, strict=True):
            lengths = shard.lengths()
            mask = excluded(shard.digests(), validation)
            plan = packer.plan(lengths[~mask], row)
            plans.append(plan)
            stored = around_excluded(plan, lengths, mask)
            for array in _ARRAYS:
                np.save(temporary / f"{name}.{array}.npy", getattr(stored, array).astype(np.uint32))
            np.save(temporary / f"{name}.filled.npy", stored.row_tokens.astype(np.uint32))
        write_json(temporary / "report.json", summarise(plans))
        commit(temporary, target)
    return Plans(target, names)
