"""What GPUs can do by their data sheets: dense bf16 FLOP/s and memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from littlelm.errors import UserError
from littlelm.registry import did_you_mean


@dataclass(frozen=True)
class Gpu:
    """Dense bf16 peak in FLOP/s (no sparsity) and memory in bytes; `match` is a regular expression that finds it
    in the name torch gives the device."""

    bf16_flops: float
    memory_bytes: float
    match: str


# Sources: the vendors' data sheets; dense figures, half of those "with sparsity", products accumulated in fp32. Without
# a suffix the SXM part. Cut-down parts (laptop, D, MIG slices) are not matched: their peak is measured instead.
GPUS: dict[str, Gpu] = {
    "a100": Gpu(312e12, 80e9, r"\bA100\b"),
    "h100": Gpu(989e12, 80e9, r"\bH100\b(?! PCIe| NVL)"),
    "h100-pcie": Gpu(756e12, 80e9, r"\bH100 PCIe\b"),
    "h100-nvl": Gpu(835e12, 94e9, r"\bH100 NVL\b"),
    "h200": Gpu(989e12, 141e9, r"\bH200\b(?! NVL)"),
    "h200-nvl": Gpu(835e12, 141e9, r"\bH200 NVL\b"),
    "b200": Gpu(2250e12, 180e9, r"\bB200\b"),
    "l40s": Gpu(362e12, 48e9, r"\bL40S\b"),
    "rtx4090": Gpu(165e12, 24e9, r"\bRTX 4090$"),
    "rtx5090": Gpu(210e12, 32e9, r"\bRTX 5090$"),
}


def find_gpu(name: str) -> Gpu:
    """A GPU of the table by name. Raises UserError with the nearest name."""
    found = GPUS.get(name.lower())
    if found is None:
        raise UserError(f"budget.gpu: unknown GPU '{name}'{did_you_mean(name.lower(), sorted(GPUS))}")
    return found


def gpu_by_device_name(device_name: str) -> Gpu | None:
    """The table's entry for the name that torch gives a CUDA device, or None."""
    if " MIG " in device_name:  # a slice of the GPU
        return None
    return next((gpu for gpu in GPUS.values() if re.search(gpu.match, device_name)), None)
