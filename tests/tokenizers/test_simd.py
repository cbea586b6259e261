"""The fast engine gives the tokens of the slow one, on text made to be difficult, or is not used and says why."""

import builtins
import pickle
import random

import numpy as np
import pytest

from littlelm import registry
from littlelm.tokenizers.base import Tokenizer
from littlelm.tokenizers.configs import Gpt2TokenizerConfig
from littlelm.tokenizers.simd import SimdEngine, _cut_digits
from littlelm.tokenizers.training import train_bpe

WORDS = [
    "the river",
    "Été",
    "don't",
    "I'LL",
    "12",
    "1999",
    "300000",
    "naïve café",
    "x = y_1 + 2;",
    "東京",
    "\n\n",
    "  ",
]
CHARACTERS = [
    *"aábcXYZß'’\"!?., \n\r\t019²Ⅷ٣ſK sdmtlverSDMTLVER字的あ👍🏽\u200d\u0301\u00a0\u2028\u3000\x85\x00_-/<|>",
    *("'s", "'LL", "  ", "\r\n", "123456", "<|bos|>", "<|endoftext|>"),
]


def difficult(count):
    chooser = random.Random(0)
    return ["".join(chooser.choice(CHARACTERS) for _ in range(chooser.randint(0, 60))) for _ in range(count)]


def trained(pattern, max_digits):
    chooser = random.Random(1)
    documents = [" ".join(chooser.choice(WORDS) for _ in range(40)) for _ in range(200)]
    return train_bpe(documents, 300, pattern, max_digits)


@pytest.fixture(
    scope="module",
    params=[("gpt2", 2), ("gpt4", 1), ("gpt4", 2), ("gpt4", 3), None],
    ids=lambda p: str(p or "gpt2-file"),
)
def tokenizer(request):
    return registry.build(Gpt2TokenizerConfig()) if request.param is None else trained(*request.param)


def test_fast_path_equals_reference(tokenizer):
    assert tokenizer.engine == "gigatoken"
    texts = difficult(4000)
    reference = Tokenizer.encode_batch(tokenizer, texts, threads=1)
    for threads in (1, 2):
        for text, fast, slow in zip(texts, tokenizer.encode_batch(texts, threads), reference, strict=True):
            assert np.array_equal(fast, slow), text
            assert fast.dtype == np.uint32


def test_a_long_text_is_encoded_as_the_reference_does(tokenizer):
    text = " ".join(difficult(3000)) + " " * 5000 + "1" * 5001
    assert np.array_equal(tokenizer.encode_batch([text], 1)[0], Tokenizer.encode_batch(tokenizer, [text], 1)[0])


def test_half_a_surrogate_pair_becomes_the_replacement_character(tokenizer):
    assert tokenizer.decode(tokenizer.encode_batch(["a\ud800b", "c"], 1)[0]) == "a\ufffdb"


def test_texts_are_cut_within_their_own_runs_of_digits_only():
    pieces, counts = _cut_digits(["a12345", "67", "", "8", "١٢٣x 9"], 2)
    assert pieces == ["a12", "34", "5", "67", "", "8", "١٢", "٣x 9"]
    assert counts.tolist() == [3, 1, 1, 1, 2]


def test_a_pattern_it_cannot_do_is_left_to_the_slow_engine():
    tokenizer = trained("gpt4", 4)
    assert tokenizer.engine == "tiktoken (a pattern that is neither GPT-2's nor ours)"
    assert tokenizer.decode(tokenizer.encode_batch(["year 12345"], 1)[0]) == "year 12345"


def test_without_the_package_the_slow_engine_does_it(monkeypatch):
    real = builtins.__import__

    def missing(name, *arguments, **options):
        if name == "gigatoken":
            raise ImportError("No module named 'gigatoken'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    tokenizer = trained("gpt4", 2)
    assert tokenizer.engine == "tiktoken (No module named 'gigatoken')"
    assert tokenizer.decode(tokenizer.encode_batch(["year 12345"], 1)[0]) == "year 12345"


def test_an_engine_that_differs_is_not_used(monkeypatch):
    monkeypatch.setattr(SimdEngine, "encode_batch", lambda engine, texts, parallel: [np.arange(3)] * len(texts))
    tokenizer = trained("gpt4", 1)
    assert "encodes" in tokenizer.engine
    assert tokenizer.decode(tokenizer.encode_batch(["year 12345"], 1)[0]) == "year 12345"


def test_a_tokenizer_pickles_without_its_engines(tokenizer):
    tokenizer.encode_batch(["text"], 1)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode_batch(["some text"], 1)[0].tolist() == tokenizer.encode("some text")
