"""Processes: who am I, how many are we, and the few collectives the trainer needs.

`torchrun` sets the environment; without it there is one process. gloo on CPU, nccl on CUDA.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from littlelm.errors import UserError

# Rank 0 alone evaluates samples and writes checkpoints while the others wait at the next collective.
_TIMEOUT = datetime.timedelta(minutes=60)


@dataclass(frozen=True)
class World:
    """This process among all: `rank` of `size`, on `device`."""

    rank: int
    size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Sum each value over all ranks, in float64 on CPU (float64 exists on CUDA too, and this is tiny)."""
        if self.size == 1:
            return values
        packed = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(packed)
        return packed.tolist()

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def environment_world_size() -> int:
    """Processes that torchrun started (1 without it), before any process group exists."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def pick_device(requested: str) -> torch.device:
    """`auto` takes CUDA when there is one. Raises UserError when CUDA is asked for and absent."""
    available = torch.cuda.is_available()
    if requested == "cuda" and not available:
        raise UserError("train.device is cuda, but torch sees no CUDA device here; use `auto` or `cpu`")
    if requested == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def start(device: torch.device) -> World:
    """Join the process group (when torchrun started several processes)."""
    size = environment_world_size()
    rank = int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_TIMEOUT)
    return World(rank, size, local_rank, device)


def stop() -> None:
    """Leave the process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
