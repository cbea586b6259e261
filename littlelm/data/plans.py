"""Packing plans of shards: one a shard, packing, row length and set of excluded documents, kept beside the shards.

Like a shard, a plan exists when its `.json`, written last, does.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.data.files import check_file, read_json, save_array
from littlelm.data.packing.plan import RowPlan
from littlelm.data.shards import Digests, Shard, ShardWriter
from littlelm.data.validation import excluded
from littlelm.errors import UserError
from littlelm.filesystem import write_atomically

SCHEMA_VERSION = 3  # of the files, and of what the packers make: a plan of another version is made anew
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


@dataclass(frozen=True)
class PlanSpec:
    """How shards are packed: what their plans are kept under.

    `held_out` are the digests of the validation documents; `excluded_by` names what else keeps documents out (their
    masks are given shard by shard).
    """

    packing: ComponentConfig
    row_length: int
    held_out: Digests
    held_out_sha256: str
    excluded_by: str = ""

    @property
    def key(self) -> str:
        content = [
            SCHEMA_VERSION, self.packing.name, self.packing.model_dump(), self.row_length, self.held_out_sha256,
            self.excluded_by,
        ]  # fmt: skip
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return f"{self.packing.name}-{self.row_length}-{digest[:8]}"

    def directory(self, shards: Path) -> Path:
        return shards / "plans" / self.key

    def exists(self, shards: Path, name: str) -> bool:
        return (self.directory(shards) / f"{name}.json").is_file()


def write_plan(
    writer: ShardWriter, directory: Path, entry: dict[str, Any], spec: PlanSpec, dropped: NDArray[np.bool_] | None
) -> None:
    """Pack one shard and write its plan; a job of a worker process."""
    shard = Shard(directory, entry, writer.dtype)
    lengths = shard.lengths()
    mask = excluded(shard.digests(), spec.held_out)
    if dropped is not None:
        mask = mask | dropped
    plan: RowPlan = registry.build(spec.packing).plan(lengths[~mask], spec.row_length)
    stored = around_excluded(plan, lengths, mask)
    target = spec.directory(directory)
    target.mkdir(parents=True, exist_ok=True)
    files = []
    arrays = {array: getattr(stored, array) for array in _ARRAYS}
    for array, values in {**arrays, "filled": stored.row_tokens}.items():
        # 4 bytes a number, unless the shard is a single enormous document or file
        small = len(values) == 0 or int(values.max()) < 2**32
        path = target / f"{shard.name}.{array}.npy"
        files.append(save_array(path, values.astype(np.uint32 if small else np.uint64)))
    content = {
        "schema_version": SCHEMA_VERSION,
        "counts": plan.counts(),
        "excluded_documents": int(mask.sum()),
        "files": files,
    }
    write_atomically(target / f"{shard.name}.json", json.dumps(content, indent=1).encode())


class Plan:
    """The memory-mapped plan of one shard. Sizes are checked on opening."""

    def __init__(self, directory: Path, name: str, spec: PlanSpec) -> None:
        self.directory = spec.directory(directory)
        content = read_json(self.directory / f"{name}.json", SCHEMA_VERSION)
        self.counts: dict[str, int] = content["counts"]
        self.excluded_documents: int = content["excluded_documents"]
        self.files: list[dict[str, Any]] = content["files"]
        for file in self.files:
            check_file(self.directory / file["name"], file, digest=False)
        self.first, self.start, self.length = (self._map(f"{name}.{array}.npy") for array in _ARRAYS)
        self.filled = self._map(f"{name}.filled.npy")

    @property
    def rows(self) -> int:
        return len(self.filled)

    def _map(self, name: str) -> NDArray[Any]:
        path = self.directory / name
        try:
            return np.asarray(np.load(path, mmap_mode="r"))  # plain: np.memmap's own indexing is slow
        except ValueError:
            raise UserError(
                f"{path}: damaged (its header cannot be read); delete {self.directory / name.split('.')[0]}.json to "
                "have this plan made anew"
            ) from None
