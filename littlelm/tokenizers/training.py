"""Training a byte-pair encoding on text (Sennrich et al. 2016, over bytes as GPT-2 does).

The counting and merging is the `tokenizers` library's; the same text gives the same vocabulary, byte for byte.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from littlelm import registry
from littlelm.config.base import ComponentConfig
from littlelm.errors import UserError
from littlelm.tokenizers.byte_pair import BytePairTokenizer
from littlelm.tokenizers.configs import BpeTokenizerConfig
from littlelm.tokenizers.vocabulary import (
    BOS,
    GPT2_PATTERN,
    Vocabulary,
    gpt4_pattern,
    read_merges,
    write_tokenizer_file,
)

_PARTS = 64  # places of a source that a limited training text is taken from


def train_bpe(
    documents: Iterable[str],
    vocab_size: int,
    pattern: str = "gpt4",
    max_digits: int = 2,
    show_progress: bool = False,
) -> BytePairTokenizer:
    """Train a tokenizer of exactly `vocab_size` tokens: 256 bytes, the merges, and <|bos|> with the last id.

    `pattern` is `gpt4` (with at most `max_digits` digits a word) or `gpt2`. Progress bars go to the terminal.
    Raises UserError when the text is too small for so many tokens.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    regex = GPT2_PATTERN if pattern == "gpt2" else gpt4_pattern(max_digits)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,  # BOS is added by us
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=show_progress,
    )
    trained.train_from_iterator(map(_encodable, documents), trainer)
    merges = read_merges(trained.to_str())
    vocabulary = Vocabulary.of_merges(regex, list(range(256)), merges, BOS)
    if len(vocabulary.tokens) < vocab_size:
        raise UserError(
            f"tokenizer.vocab_size is {vocab_size:,}, but the training text has words for {len(vocabulary.tokens):,} "
            "tokens only; lower it to that, or name more text"
        )
    return BytePairTokenizer(vocabulary, "bpe")


def sample_documents(sources: Sequence[Any], train_bytes: int) -> Iterator[str]:
    """Documents of every source, at most about `train_bytes` bytes of text in all.

    Where there is more, each source gives in proportion to its size, and from many places of it, so that the sample
    has the whole corpus's mixture. The same corpus gives the same sample.
    """
    sizes = [source.size() for source in sources]
    parts = [part for source, size in zip(sources, sizes, strict=True) for part in _weighted(source, size)]
    left, weight_left = float(train_bytes), sum(weight for _, weight in parts)
    for part, weight in parts:
        allowed = left * weight / weight_left if weight_left > 0 else left
        taken = 0
        for document in part.documents():
            if taken >= allowed:
                break
            taken += len(document.encode("utf-8", errors="replace"))
            yield document
        left, weight_left = max(0.0, left - taken), weight_left - weight


def _weighted(source: Any, size: int) -> list[tuple[Any, float]]:
    parts = source.split(_PARTS)
    return [(part, size / len(parts)) for part in parts]


def train_on_sources(config: BpeTokenizerConfig, sources: Sequence[Any]) -> BytePairTokenizer:
    """Train what the config describes on the sources' documents, with progress bars on a terminal.

    Raises UserError for an empty corpus, or one too small for the vocabulary.
    """
    assert config.vocab_size is not None
    documents = sample_documents(sources, config.train_bytes)
    first = next(documents, None)
    if first is None:
        raise UserError(
            "the text to train the tokenizer on is empty: " + "; ".join(source.describe() for source in sources)
        )
    return train_bpe(
        _chained(first, documents),
        config.vocab_size,
        config.pattern,
        config.max_digits,
        show_progress=sys.stderr.isatty(),
    )


def train_to_file(
    texts: Sequence[ComponentConfig | str],
    vocab_size: int,
    out: str | Path,
    *,
    pattern: Literal["gpt4", "gpt2"] = "gpt4",
    max_digits: int = 2,
    train_bytes: int = 1_000_000_000,
) -> BytePairTokenizer:
    """Train a tokenizer and write it to the file `out` (a tokenizer.json); `tokenizer.path` then names it.

    `texts` are configs of sources, or paths and globs, whose suffix says how they are read. The other arguments are
    the keys of `BpeTokenizerConfig`. Raises UserError for a wrong value, no text, or too little of it.
    """
    from littlelm.data.source_configs import source_for_files

    values = {"vocab_size": vocab_size, "pattern": pattern, "max_digits": max_digits, "train_bytes": train_bytes}
    try:
        config = BpeTokenizerConfig.model_validate(values)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc'])) or 'tokenizer'}: {e['msg']}" for e in error.errors())
        raise UserError("; ".join(problems)) from None
    sources = [registry.build(source_for_files(text) if isinstance(text, str) else text) for text in texts]
    out = Path(out).expanduser()
    if out.is_dir():
        out = out / "tokenizer.json"
    tokenizer = train_on_sources(config, sources)
    write_tokenizer_file(out, tokenizer.vocabulary.to_json())
    return tokenizer


def _encodable(document: str) -> str:
    """Half a surrogate pair is no Unicode text: it becomes U+FFFD, as in encoding."""
    try:
        document.encode()
    except UnicodeEncodeError:
        return document.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return document


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest
