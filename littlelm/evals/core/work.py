"""Sharing packs between processes: a counter that hands out the next one, and a gathering of what came of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its public name

_T = TypeVar("_T")
_TAKEN = "packs taken"


class PackQueue:
    """Numbers 0 .. count - 1, each given to one process of the world, in order, to whoever asks next.

    All processes must iterate. With equal shares the slowest would decide; with a counter nobody waits for longer
    than one pack takes.

    Args:
        count: how many packs there are.
        world: the processes (`rank`, `size`); None: one.
    """

    def __init__(self, count: int, world: Any = None):
        self.count = count
        self.store = None if world is None or world.size == 1 else _shared_store(world)

    def __iter__(self) -> Iterator[int]:
        if self.store is None:
            yield from range(self.count)
            return
        while (number := self.store.add(_TAKEN, 1) - 1) < self.count:
            yield number


def _shared_store(world: Any) -> TCPStore:
    """A store of this evaluation alone, served by rank 0 on a free port that it tells the others."""
    host = os.environ.get("MASTER_ADDR", "localhost")
    told: list[Any] = [None]
    store = None
    if world.rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        told = [store.port]
    dist.broadcast_object_list(told, src=0)
    return store if store is not None else TCPStore(host, told[0], is_master=False)


def gather(value: _T, world: Any = None) -> list[_T]:
    """The value of every process, by rank, on every process."""
    if world is None or world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values
