"""State of every random generator as tensors: torch on CPU and CUDA, numpy, Python. No pickle."""

from __future__ import annotations

import json
import random

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed every global generator."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # CUDA devices too


def _pack(value: object) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _unpack(tensor: Tensor) -> list:
    return json.loads(bytes(tensor.tolist()).decode())


def capture() -> dict[str, Tensor]:
    """The state of all global generators, uint8 tensors by name."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # type: ignore[misc]
    state = {
        "torch": torch.get_rng_state(),
        "python": _pack([version, list(words), gauss]),
        "numpy": _pack([name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]),
    }
    if torch.cuda.is_available():
        state |= {f"cuda.{i}": each for i, each in enumerate(torch.cuda.get_rng_state_all())}
    return state


def restore(state: dict[str, Tensor]) -> None:
    """Put the generators back; CUDA states of devices that are not here are left out."""
    torch.set_rng_state(state["torch"].clone())
    version, words, gauss = _unpack(state["python"])
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = _unpack(state["numpy"])
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda.{index}" in state:
            torch.cuda.set_rng_state(state[f"cuda.{index}"].clone(), index)
