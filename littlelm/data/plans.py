"""Packing plans of prepared shards: made once per packing config and row length, kept beside the shards."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.data.files import check_file, commit, read_json, save_array, write_json
from littlelm.data.packing.plan import RowPlan, summarise
from littlelm.data.shards import Digests, Shard
from littlelm.data.validation import excluded

SCHEMA_VERSION = 2  # of the files, and of what the packers make: a plan of another version is made anew
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
    ordered = start[order]
    for position in np.unique(breaks):
        candidate = int(np.searchsorted(ordered, position, side="right")) - 1
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
    text = json.dumps([SCHEMA_VERSION, packing.name, packing.model_dump(), row_length], sort_keys=True)
    return f"{packing.name}-{row_length}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Plans:
    """The memory-mapped plans of all shards, and what they achieved. Sizes are checked on opening."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        self.directory = directory
        manifest = read_json(directory / "manifest.json", SCHEMA_VERSION)
        self.report: dict[str, Any] = manifest["report"]
        self._files: list[dict[str, Any]] = manifest["files"]
        for file in self._files:
            check_file(directory / file["name"], file, digest=False)
        self.arrays = [{array: self._map(f"{name}.{array}.npy") for array in _ARRAYS} for name in names]
        self.filled = [self._map(f"{name}.filled.npy") for name in names]

    def _map(self, name: str) -> NDArray[Any]:
        return np.asarray(np.load(self.directory / name, mmap_mode="r"))  # plain: np.memmap's own indexing is slow

    def verify(self) -> None:
        """Raise UserError naming the first file whose sha256 is not the recorded one."""
        for file in self._files:
            check_file(self.directory / file["name"], file, digest=True)


def make_plans(directory: Path, shards: list[Shard], validation: Digests, packing: ComponentConfig, row: int) -> Plans:
    """Open the plans of a packing, making them first when they are not there. The caller holds the data's lock."""
    target = directory / "plans" / plan_key(packing, row)
    names = [shard.entry["name"] for shard in shards]
    if not (target / "manifest.json").is_file():
        for leftover in target.parent.glob(f".tmp-{target.name}-*"):  # of a killed process
            shutil.rmtree(leftover)
        temporary = target.with_name(f".tmp-{target.name}-{os.getpid()}")
        temporary.mkdir(parents=True)
        try:
            files: list[dict[str, Any]] = []
            report = summarise(_write_plans(temporary, shards, validation, registry.build(packing), row, files))
            write_json(
                temporary / "manifest.json", {"schema_version": SCHEMA_VERSION, "report": report, "files": files}
            )
            commit(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return Plans(target, names)


def _write_plans(
    directory: Path, shards: list[Shard], validation: Digests, packer: Any, row: int, files: list[dict[str, Any]]
) -> Iterator[RowPlan]:
    """Pack one shard after the other, write its arrays, append their entries to `files`, and yield its plan."""
    for shard in shards:
        lengths = shard.lengths()
        mask = excluded(shard.digests(), validation)
        plan: RowPlan = packer.plan(lengths[~mask], row)
        stored = around_excluded(plan, lengths, mask)
        arrays = {array: getattr(stored, array) for array in _ARRAYS}
        for array, values in {**arrays, "filled": stored.row_tokens}.items():
            # 4 bytes a number, unless the shard is a single enormous document or file
            small = len(values) == 0 or int(values.max()) < 2**32
            path = directory / f"{shard.entry['name']}.{array}.npy"
            files.append(save_array(path, values.astype(np.uint32 if small else np.uint64)))
        yield plan
