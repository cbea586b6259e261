"""The one transformer: its size, its roles, what each token may see, and that every choice is what it says."""

import pytest
import torch
from torch import nn

from littlelm.errors import UserError
from littlelm.model.configs import TransformerConfig
from littlelm.model.linear import Linear
from littlelm.model.roles import parameter_roles
from littlelm.model.transformer import Transformer
from littlelm.plan import parameters as plan

REFERENCE = TransformerConfig(
    hidden_size=3072, intermediate_size=12288, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8,
    residual_scalars=True, value_embeddings="alternate", qk_norm=True, logit_softcap=15.0,
)  # fmt: skip
LLAMA_858M = TransformerConfig(
    hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8,
    mlp="swiglu", norm_weight=True, embedding_norm=False, tie_embeddings=True,
)  # fmt: skip
SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 32}
CHOICES = [
    {},
    {"num_key_value_heads": 2, "mlp": "swiglu", "norm_weight": True, "embedding_norm": False},
    {"tie_embeddings": True, "mlp": "gelu", "num_key_value_heads": 1},
    {"value_embeddings": "alternate", "residual_scalars": True, "qk_norm": True, "logit_softcap": 10.0},
    {"value_embeddings": "alternate", "value_embedding_gate": True, "num_key_value_heads": 2, "head_dim": 16},
    {"init_std": 0.02, "pad_vocab_multiple": 1, "intermediate_size": 100},
]


def build(vocab_size=100, **choices):
    """A small model with every weight moved off its initial value, so that nothing is zero by accident."""
    model = Transformer(TransformerConfig(**{**SMALL, **choices}), vocab_size)
    generator = torch.Generator().manual_seed(1)
    model.init_weights(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def counts(config, vocab_size):
    with torch.device("meta"):
        model = Transformer(config, vocab_size)
    roles = model.parameter_roles()
    result = {}
    for name, parameter in model.named_parameters():
        result[roles[name]] = result.get(roles[name], 0) + parameter.numel()
    return result


def test_the_reference_recipe_has_exactly_these_parameters():
    assert counts(REFERENCE, 50257) == plan.parameters_by_role(REFERENCE, 50257) == {
        "embedding": 154_533_888, "value_embedding": 721_158_144, "matrix": 2_818_572_288, "scalar": 56,
        "head": 154_533_888,
    }  # fmt: skip


def test_the_858m_baseline_has_exactly_these_parameters():
    by_role = counts(LLAMA_858M, 50257)
    assert by_role == plan.parameters_by_role(LLAMA_858M, 50257)
    assert sum(by_role.values()) == 858_064_896


@pytest.mark.parametrize("choices", CHOICES)
def test_the_plan_counts_what_the_model_has(choices):
    config = TransformerConfig(**{**SMALL, **choices})
    assert counts(config, 100) == plan.parameters_by_role(config, 100)
    with torch.device("meta"):
        model = Transformer(config, 100)
    multiplied = sum(m.weight.numel() for m in model.modules() if isinstance(m, Linear))
    assert plan.matmul_parameters(config, 100) == multiplied + model.head_weight.numel()


@pytest.mark.parametrize("choices", CHOICES)
def test_a_token_sees_itself_and_what_is_before_it(choices):
    model = build(**choices)
    tokens = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 100
    difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert (difference[:9] == 0).all()
    assert (difference[9:] > 0).all()


@pytest.mark.parametrize("choices", CHOICES)
def test_the_gradient_reaches_every_parameter(choices):
    model = build(**choices)
    model.logits(model(torch.randint(0, 100, (2, 8)))).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_positions_are_relative():
    """Without a first token to hold on to, shifting the window changes nothing: only distances count."""
    model = build()
    tokens = torch.randint(0, 100, (1, 8))
    hidden = model(tokens)
    cos, sin = model.cos.clone(), model.sin.clone()
    model.cos[:8], model.sin[:8] = cos[5:13], sin[5:13]
    torch.testing.assert_close(model(tokens), hidden, atol=1e-5, rtol=1e-4)


def test_padded_vocabulary_is_cut_off_the_logits():
    model = build(vocab_size=100)
    assert model.padded_vocab_size == 128
    assert model.head_weight.shape == (128, 48)
    assert model.logits(model(torch.zeros(1, 4, dtype=torch.int64))).shape == (1, 4, 100)


def test_softcap_bounds_the_logits():
    model = build(logit_softcap=2.0)
    with torch.no_grad():
        model.head_weight.mul_(100)
    logits = model.logits(model(torch.randint(0, 100, (1, 8))))
    assert logits.abs().max() <= 2.0
    assert logits.dtype == torch.float32


def test_the_same_seed_gives_the_same_weights_and_another_others():
    def weights(seed):
        model = Transformer(TransformerConfig(**SMALL), 100)
        model.init_weights(torch.Generator().manual_seed(seed))
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(1), weights(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(1), weights(2), strict=True))


def test_at_the_start_the_loss_is_that_of_a_uniform_guess():
    model = Transformer(TransformerConfig(**{**SMALL, "hidden_size": 256}), 1000)
    model.init_weights(torch.Generator().manual_seed(1))
    logits = model.logits(model(torch.randint(0, 1000, (2, 16))))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(0, 1000, (32,)))
    assert loss.item() == pytest.approx(torch.tensor(1000.0).log().item(), abs=0.01)


def test_bf16_activations_leave_the_weights_alone():
    model = build(qk_norm=True)
    tokens = torch.randint(0, 100, (2, 16))
    exact = model(tokens)
    model.compute_dtype = torch.bfloat16
    hidden = model(tokens)
    assert hidden.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert (hidden.float() - exact).norm() / exact.norm() < 0.03  # a few roundings of 2^-9 each


def test_tied_head_is_the_embedding():
    model = build(tie_embeddings=True)
    assert model.head_weight is model.embedding.weight
    assert model.parameter_roles()["embedding.weight"] == "embedding"
    assert not any(name.startswith("head") for name, _ in model.named_parameters())


def test_a_parameter_without_a_role_or_with_two_is_an_error():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

    with pytest.raises(ValueError, match="gives it no role"):
        parameter_roles(Bare())
    both = nn.ModuleList([Linear(2, 2), build().embedding])
    both[1].weight = both[0].weight
    with pytest.raises(ValueError, match=r"'1\.weight' is 'embedding', but as '0\.weight' it is 'matrix'"):
        parameter_roles(both)


def test_another_vocabulary_than_the_tokenizers_is_an_error():
    with pytest.raises(UserError, match="the tokenizer has 100 tokens"):
        Transformer(TransformerConfig(vocab_size=99, **SMALL), 100)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads 5 does not divide hidden_size 48"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        ({"head_dim": 7}, "must be even"),
        ({"value_embedding_gate": True}, "needs value_embeddings: alternate"),
    ],
)
def test_contradictions_are_named(choices, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**{**SMALL, **choices})


def test_more_positions_than_the_model_has_is_an_error():
    with pytest.raises(ValueError, match="33 positions, but max_position_embeddings is 32"):
        build()(torch.zeros(1, 33, dtype=torch.int64))


def test_one_graph_compiled_equals_eager():
    model = build(**CHOICES[4], qk_norm=True, residual_scalars=True)
    tokens = torch.randint(0, 100, (2, 16))
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(tokens), model(tokens), atol=1e-5, rtol=1e-4)
