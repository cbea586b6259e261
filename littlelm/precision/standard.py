"""The dtypes of a run, decided once, with the reason in a sentence."""

from __future__ import annotations

from pathlib import Path

import torch

from littlelm.errors import UserError
from littlelm.precision.configs import StandardConfig

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16_stochastic": torch.bfloat16}


class Standard:
    """`compute_dtype` of activations and products, `master_dtype` of the weights the optimizer updates.

    Nothing global is touched: no autocast, no TF32 switch, no default dtype.

    Args:
        config: the keys.
        device_type: "cpu" or "cuda".

    Attributes:
        compute_dtype: torch.bfloat16 or torch.float32.
        master_dtype: torch.bfloat16 or torch.float32.
        stochastic_rounding: whether updated bf16 weights are rounded stochastically.
        reason: a sentence to print, why it is so.

    Raises:
        UserError: bf16 products on a CUDA device that has none.
    """

    def __init__(self, config: StandardConfig, device_type: str) -> None:
        native, hardware = bf16_support(device_type)
        if config.compute == "auto":
            self.compute_dtype = torch.bfloat16 if native else torch.float32
            why = f"compute auto: {hardware}"
        else:
            self.compute_dtype = _DTYPES[config.compute]
            why = f"compute {config.compute}, as the file says"
            if config.compute == "bf16" and not native:
                if device_type == "cuda":
                    raise UserError(f"precision.compute: bf16, but {hardware}; set precision.compute: fp32 or auto")
                why += f", slowly: {hardware}"
        self.master_dtype = _DTYPES[config.master]
        self.stochastic_rounding = config.master == "bf16_stochastic"
        if device_type == "cuda" and self.compute_dtype == torch.float32:
            tf32 = torch.get_float32_matmul_precision()
            why += f", products at torch's own float32_matmul_precision '{tf32}' ('highest' is true fp32)"
        rounding = ", rounded stochastically" if self.stochastic_rounding else ""
        self.reason = f"{why}; master weights {'fp32' if config.master == 'fp32' else 'bf16'}{rounding}"


def bf16_support(device_type: str) -> tuple[bool, str]:
    """Whether `device_type` multiplies bf16 natively, and a clause that says why."""
    if device_type == "cuda":
        major, minor = torch.cuda.get_device_capability()
        name = f"{torch.cuda.get_device_name()} (sm_{major}{minor})"
        if major >= 8:
            return True, f"bf16, as {name} multiplies it in hardware"
        return False, f"{name} has no bf16 products, which need sm_80 or later"
    if device_type == "cpu":
        flags = cpu_flags()
        for flag, name in (("amx_bf16", "AMX-bf16"), ("avx512_bf16", "AVX512-bf16")):
            if flag in flags:
                return True, f"bf16, as this CPU has {name}"
        return False, "fp32, as this CPU has neither AMX-bf16 nor AVX512-bf16"
    return False, f"fp32, as nothing is known of bf16 on the device type '{device_type}'"


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The instruction-set flags that Linux lists for this CPU; empty where there is no such file."""
    if not cpuinfo.is_file():
        return frozenset()
    for line in cpuinfo.read_text(errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
