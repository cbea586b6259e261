"""The resolved dtypes and the sentence that says why."""

import pytest
import torch

from littlelm.errors import UserError
from littlelm.precision import standard
from littlelm.precision.configs import StandardConfig
from littlelm.precision.standard import Standard, cpu_flags


@pytest.mark.parametrize(
    ("flags", "dtype", "said"),
    [
        ({"avx2", "amx_bf16", "avx512_bf16"}, torch.bfloat16, "AMX-bf16"),
        ({"avx2", "avx512_bf16"}, torch.bfloat16, "AVX512-bf16"),
        ({"avx2"}, torch.float32, "neither"),
    ],
)
def test_auto_on_a_cpu_is_bf16_exactly_where_the_cpu_multiplies_it(monkeypatch, flags, dtype, said):
    monkeypatch.setattr(standard, "cpu_flags", lambda: frozenset(flags))
    resolved = Standard(StandardConfig(), "cpu")
    assert resolved.compute_dtype == dtype
    assert said in resolved.reason


@pytest.mark.parametrize(
    ("capability", "dtype"), [((9, 0), torch.bfloat16), ((8, 0), torch.bfloat16), ((7, 5), torch.float32)]
)
def test_auto_on_cuda_is_bf16_from_sm_80_on(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    before = torch.get_float32_matmul_precision()
    resolved = Standard(StandardConfig(), "cuda")
    assert resolved.compute_dtype == dtype
    assert f"sm_{capability[0]}{capability[1]}" in resolved.reason
    assert torch.get_float32_matmul_precision() == before
    if dtype == torch.float32:
        assert before in resolved.reason


def test_bf16_on_a_card_without_it_is_a_user_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "an old card")
    with pytest.raises(UserError, match=r"precision\.compute"):
        Standard(StandardConfig(compute="bf16"), "cuda")


@pytest.mark.parametrize(
    ("master", "dtype", "stochastic"),
    [("fp32", torch.float32, False), ("bf16", torch.bfloat16, False), ("bf16_stochastic", torch.bfloat16, True)],
)
def test_master_weights_are_what_the_file_says(master, dtype, stochastic):
    resolved = Standard(StandardConfig(compute="fp32", master=master), "cpu")
    assert (resolved.master_dtype, resolved.stochastic_rounding) == (dtype, stochastic)
    assert resolved.compute_dtype == torch.float32


def test_cpu_flags_come_from_the_first_processor_and_are_empty_without_the_file(tmp_path):
    listing = tmp_path / "cpuinfo"
    listing.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n")
    assert cpu_flags(listing) == {"fpu", "avx2", "avx512_bf16"}
    assert cpu_flags(tmp_path / "none") == frozenset()
