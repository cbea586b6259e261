"""What GPUs can do by their data sheets: dense bf16 FLOP/s and memory."""

from __future__ import annotations

from dataclasses import dataclass

from littlelm.errors import UserError
from littlelm.registry import did_you_mean


@dataclass(frozen=True)
class Gpu:
    """Dense bf16 peak in FLOP/s (no sparsity) and memory in bytes; `match` is how torch names the device."""

    bf16_flops: float
    memory_bytes: float
    match: str


# Sources: the vendors' data sheets, SXM parts where there are several; dense figures, half of those "with sparsity".
GPUS: dict[str, Gpu] = {
    "a100": Gpu(312e12, 80e9, "A100"),
    "h100": Gpu(989e12, 80e9, "H100"),
    "h200": Gpu(989e12, 141e9, "H200"),
    "b200": Gpu(2250e12, 180e9, "B200"),
    "l40s": Gpu(362e12, 48e9, "L40S"),
    "rtx4090": Gpu(165e12, 24e9, "RTX 4090"),
    "rtx5090": Gpu(210e12, 32e9, "RTX 5090"),
}


def find_gpu(name: str) -> Gpu:
    """A GPU of the table by name. Raises UserError with the nearest name."""
    found = GPUS.get(name.lower())
    if found is None:
        raise UserError(f"budget.gpu: unknown GPU '{name}'{did_you_mean(name.lower(), sorted(GPUS))}")
    return found


def gpu_by_device_name(device_name: str) -> Gpu | None:
    """The table's entry for the name that torch gives a CUDA device, or None."""
    return next((gpu for gpu in GPUS.values() if gpu.match in device_name), None)
