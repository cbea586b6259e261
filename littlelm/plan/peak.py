"""The matrix peak of the device at hand: from the table where it is known, measured where it is not."""

from __future__ import annotations

import time

import torch

from littlelm.plan.hardware import gpu_by_device_name


def measure_matrix_peak(device: torch.device, dtype: torch.dtype, seconds: float = 2.0) -> float:
    """Best FLOP/s of a large matrix product into a preallocated output, over about `seconds`.

    Two shapes are tried, a square one and the tall one of a training step; the better counts.
    """
    best = 0.0
    for rows, inner, columns in ((2048, 2048, 2048), (8192, 512, 2048)):
        a = torch.randn(rows, inner, dtype=torch.float32).to(device, dtype)
        b = torch.randn(inner, columns, dtype=torch.float32).to(device, dtype)
        out = torch.empty(rows, columns, dtype=dtype, device=device)
        deadline = time.perf_counter() + seconds / 2
        while True:
            started = time.perf_counter()
            torch.mm(a, b, out=out)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            ended = time.perf_counter()
            best = max(best, 2.0 * rows * inner * columns / (ended - started))
            if ended > deadline:
                break
    return best


def peak_of_device(device: torch.device, dtype: torch.dtype) -> tuple[float, str]:
    """(FLOP/s, where the figure is from) of one process's device in the compute dtype."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        gpu = gpu_by_device_name(name)
        if gpu is not None and dtype == torch.bfloat16:
            return gpu.bf16_flops, f"data sheet of {name}, dense bf16"
    kind = str(dtype).removeprefix("torch.")
    return measure_matrix_peak(device, dtype), f"measured {kind} matrix product, {torch.get_num_threads()} threads"
