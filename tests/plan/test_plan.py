"""The plan's arithmetic, held against real tensors and torch's own counter."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from littlelm import registry
from littlelm.errors import UserError
from littlelm.loss.configs import FullLossConfig
from littlelm.loss.full import FullLoss
from littlelm.model.configs import TransformerConfig
from littlelm.model.transformer import Transformer
from littlelm.optim.configs import AdamWConfig, CompositeConfig, MuonConfig
from littlelm.plan.flops import flops_per_token
from littlelm.plan.hardware import find_gpu, gpu_by_device_name
from littlelm.plan.memory import state_bytes
from littlelm.plan.peak import measure_matrix_peak, peak_of_device
from littlelm.precision.configs import StandardConfig
from littlelm.train.configs import load_run

CONFIGS = [
    {"mlp": "relu2"},
    {"mlp": "swiglu", "num_key_value_heads": 2, "tie_embeddings": True},
    {"value_embeddings": "alternate", "value_embedding_gate": True, "residual_scalars": True},
]


def build(choices):
    config = TransformerConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, **choices)
    model = Transformer(config, 128)
    model.init_weights(torch.Generator().manual_seed(0))
    return config, model


@pytest.mark.parametrize("choices", CONFIGS)
def test_flops_are_what_torch_counts(choices):
    """Products exactly; attention is counted in full by torch, by us as the causal half. The first layer's products
    need no gradient of their input only for lookups, so all of them cost 2 + 4."""
    config, model = build(choices)
    tokens = torch.randint(0, 128, (2, 32))
    with FlopCounterMode(display=False) as counter:
        hidden = model(tokens)
        loss, _ = FullLoss(FullLossConfig())(hidden.flatten(0, 1), model.head_weight, tokens.flatten(), 128, None)
        loss.backward()
    totals = counter.get_flop_counts()["Global"]
    attention = sum(flops for op, flops in totals.items() if "attention" in str(op))
    ours = flops_per_token(config, 128, 32)
    assert sum(totals.values()) - attention == ours.matmul * tokens.numel()
    forward = 2 * 2 * 2 * 64 * 32  # layers x (q k^T and the values' product) x width x context, a token
    assert ours.attention == 3 * forward / 2


@pytest.mark.parametrize(("master", "each"), [("fp32", 4), ("bf16", 2)])
def test_state_bytes_are_those_of_the_tensors(master, each):
    config, model = build(CONFIGS[2])
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.float32 if master == "fp32" else torch.bfloat16)
    optimizer_config = CompositeConfig(matrix=MuonConfig(), default=AdamWConfig())
    optimizer = registry.build(optimizer_config, list(model.named_parameters()), model.parameter_roles())
    states = [t for name, t in optimizer.state_tensors().items() if not name.endswith(".step")]
    planned = state_bytes(config, 128, optimizer_config, StandardConfig(master=master))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert planned == {
        "weights": count * each,
        "gradients": count * each,
        "optimizer": sum(tensor.numel() * tensor.element_size() for tensor in states),
    }


def test_a_misspelt_gpu_is_named_with_the_nearest():
    assert find_gpu("B200").bf16_flops == 2250e12
    with pytest.raises(UserError, match="did you mean 'b200'"):
        find_gpu("b20")


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"), ("NVIDIA H200 NVL", "h200-nvl"), ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA B200", "b200"), ("NVIDIA L40S", "l40s"), ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", None), ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA GB200", None),
        ("NVIDIA GH200 480GB", None), ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None), ("Quadro", None),
    ],
)  # fmt: skip
def test_a_gpu_of_the_table_is_known_by_its_name_and_a_variant_is_not_mistaken_for_it(device_name, name):
    assert gpu_by_device_name(device_name) is (None if name is None else find_gpu(name))


def test_the_reference_run_is_planned_near_what_it_cost():
    """43 h and 998 USD in all, of which 33 h of training read 57.3B tokens at 1,047 TFLOP/s a GPU (as published)."""
    from pathlib import Path

    from littlelm.plan.cost import plan

    config = load_run(Path(__file__).parents[2] / "configs" / "little-3.8b.yaml").config
    made = plan(config, 50257)
    assert made.total_parameters == 3_848_798_264
    hours = made.seconds / 3600
    assert 33 * 65 / 57.3 < hours < 43
    assert made.usd == pytest.approx(hours * 8 * 2.90)


def test_the_peak_is_measured_where_no_table_has_it():
    device = torch.device("cpu")
    assert measure_matrix_peak(device, torch.float32, seconds=0.05) > 1e8
    peak, source = peak_of_device(device, torch.float32)
    assert peak > 1e8
    assert "measured float32 matrix product" in source
