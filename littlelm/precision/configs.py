"""Typed config of the numeric formats of a run. Free of torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from littlelm.config.base import ComponentConfig
from littlelm.registry import declare_kind, register_lazy

declare_kind(
    "precision",
    "built with (config, device_type): compute_dtype, master_dtype, stochastic_rounding, and the reason in a sentence",
)


@register_lazy("precision", "standard", "littlelm.precision.standard:Standard")
class StandardConfig(ComponentConfig):
    """One dtype for the products, one for the weights the optimizer keeps; nothing is switched behind your back."""

    compute: Literal["auto", "bf16", "fp32"] = Field(
        "auto",
        description="dtype of activations and matrix products; auto: bf16 where the hardware multiplies it natively "
        "(CUDA sm_80 and later, CPUs with AMX-bf16 or AVX512-bf16), else fp32, with the reason printed",
    )
    master: Literal["fp32", "bf16", "bf16_stochastic"] = Field(
        "fp32",
        description="dtype of the weights that the optimizer updates. bf16: half the memory, updates below 1/256 of a "
        "weight are lost; bf16_stochastic: half the memory, such updates survive on average",
    )
