"""Generation: the cache changes nothing but the time, and sampling does what its names say."""

import pytest
import torch

from littlelm.errors import UserError
from littlelm.inference import generate
from littlelm.inference.cache import KVCache
from littlelm.inference.generate import note_on_speed
from littlelm.inference.sampling import filter_logits, pick
from littlelm.inference.weights import cast_weights
from littlelm.model.configs import TransformerConfig
from littlelm.model.transformer import Transformer

CHOICES = [
    {},
    {"num_key_value_heads": 2, "mlp": "swiglu", "norm_weight": True, "embedding_norm": False, "tie_embeddings": True},
    {"value_embeddings": "alternate", "value_embedding_gate": True, "residual_scalars": True, "qk_norm": True,
     "logit_softcap": 10.0, "num_key_value_heads": 1},
]  # fmt: skip


def build(choices):
    config = TransformerConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=48, **choices
    )
    model = Transformer(config, 60)
    generator = torch.Generator().manual_seed(1)
    model.init_weights(generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("choices", CHOICES)
def test_cached_equals_uncached_token_for_token(choices):
    model = build(choices)
    for temperature in (0.0, 1.0):
        runs = [
            list(
                generate(
                    model, [1, 2, 3], 40, temperature=temperature, use_cache=cached,
                    generator=torch.Generator().manual_seed(4),
                )
            )
            for cached in (True, False)
        ]  # fmt: skip
        assert runs[0] == runs[1]
        assert len(runs[0]) == 40


@pytest.mark.parametrize("choices", CHOICES)
@torch.no_grad()
def test_any_division_of_a_text_into_pieces_gives_the_same_logits(choices):
    model = build(choices)
    tokens = torch.randint(0, 60, (2, 20), generator=torch.Generator().manual_seed(5))
    whole = model.logits(model(tokens))
    for cuts in ([7, 13], [1, 1, 18], [20]):
        cache = KVCache(model.config, 2, 20, torch.float32, tokens.device)
        pieces = [model.logits(model(piece, cache)) for piece in tokens.split(cuts, dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-5, rtol=1e-4)


def test_the_seed_decides():
    model = build({})

    def text(seed):
        return list(generate(model, [1], 30, generator=torch.Generator().manual_seed(seed)))

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_it_ends_after_a_stop_token():
    model = build({})
    free = list(generate(model, [1], 30, temperature=0.0))
    stop = free[2]
    assert list(generate(model, [1], 30, temperature=0.0, stop_ids=[stop])) == free[: free.index(stop) + 1]


def test_the_whole_context_can_be_used_and_no_more():
    model = build({})
    assert len(list(generate(model, [1] * 40, 9))) == 9
    with pytest.raises(UserError, match="do not fit into the context of 48"):
        list(generate(model, [1] * 40, 10))
    with pytest.raises(UserError, match="BOS"):
        list(generate(model, [], 10))


def test_top_k_keeps_the_k_likeliest():
    logits = torch.tensor([1.0, 4.0, 2.0, 3.0])
    assert filter_logits(logits, 2, None).isfinite().tolist() == [False, True, False, True]


def test_top_p_keeps_the_token_that_crosses_p():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert filter_logits(logits, None, 0.6).isfinite().tolist() == [True, True, False, False]
    assert filter_logits(logits, None, 0.01).isfinite().tolist() == [True, False, False, False]
    assert filter_logits(logits, None, 1.0).isfinite().all()


def test_sampling_follows_the_probabilities():
    logits = torch.tensor([0.7, 0.2, 0.1]).log()
    generator = torch.Generator().manual_seed(0)
    draws = [pick(logits, 1.0, None, None, generator) for _ in range(3000)]
    assert draws.count(0) / 3000 == pytest.approx(0.7, abs=5 * (0.7 * 0.3 / 3000) ** 0.5)
    assert {pick(logits, 0.0, None, None, None) for _ in range(5)} == {0}
    assert {pick(logits, 1e-46, None, None, generator) for _ in range(5)} == {0}
    cold = [pick(logits, 0.1, None, None, generator) for _ in range(200)]
    assert cold.count(0) > 195


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_weights_are_said_and_not_sampled(temperature):
    with pytest.raises(UserError, match="weights are broken"):
        pick(torch.tensor([0.0, float("nan")]), temperature, None, None, None)


class OwnModel(torch.nn.Module):
    """A user's own: no limit, no cache, no config. It predicts the sum of all that it reads."""

    compute_dtype = torch.float32

    def __init__(self):
        super().__init__()
        self.head_weight = torch.nn.Parameter(torch.eye(50))
        self.read = []

    def forward(self, tokens):
        self.read.append(tokens.tolist()[0])
        return torch.nn.functional.one_hot(tokens.cumsum(1) % 50, 50).float()

    def logits(self, hidden):
        return hidden


def test_a_model_without_cache_or_limit_reads_its_window_again_for_each_token():
    model = OwnModel()
    assert list(generate(model, [1, 2, 3], 4, temperature=0.0)) == [6, 12, 24, 48]
    assert model.read == [[1, 2, 3], [1, 2, 3, 6], [1, 2, 3, 6, 12], [1, 2, 3, 6, 12, 24]]
    model.read.clear()
    assert list(generate(model, [1, 2, 3], 3, temperature=0.0, context=2)) == [5, 8, 13]
    assert model.read == [[2, 3], [3, 5], [5, 8]]
    assert "takes no cache" in note_on_speed(model)
    assert note_on_speed(build({})) is None


@pytest.mark.parametrize("choices", CHOICES)
def test_weights_cast_once_give_the_same_bits(choices):
    model = build(choices)
    model.compute_dtype = torch.bfloat16
    tokens = torch.randint(0, 60, (2, 20), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        before = model.logits(model(tokens))
        cast_weights(model)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert torch.equal(model.logits(model(tokens)), before)
