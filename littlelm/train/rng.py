"""State of every random generator as tensors: torch on CPU and CUDA, numpy, Python. No pickle."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from littlelm.errors import UserError


def seed_everything(seed: int) -> None:
    """Seed every global generator, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # CUDA devices too


def _pack(value: object) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _unpack(tensor: Tensor) -> list[Any]:
    unpacked: list[Any] = json.loads(bytes(tensor.tolist()).decode())
    return unpacked


def capture() -> dict[str, Tensor]:
    """The state of all global generators, uint8 tensors by name: torch, python, numpy, cuda.<device index>."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": _pack([version, list(words), gauss]),
        "numpy": _pack([name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]),
    }
    if torch.cuda.is_available():
        state |= {f"cuda.{i}": each for i, each in enumerate(torch.cuda.get_rng_state_all())}
    return state


def restore(state: dict[str, Tensor]) -> None:
    """Put the generators back. States of CUDA devices that are not here are left out, and devices without a saved
    state keep the one they have. Raises UserError when the state of a generator that is always there is missing.
    """
    missing = {"torch", "python", "numpy"} - state.keys()
    if missing:
        raise UserError(
            f"the checkpoint's random state lacks {', '.join(sorted(missing))}; it cannot be continued exactly"
        )
    torch.set_rng_state(state["torch"].clone())
    version, words, gauss = _unpack(state["python"])
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = _unpack(state["numpy"])
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda.{index}" in state:
            torch.cuda.set_rng_state(state[f"cuda.{index}"].clone(), index)
