"""The tokenizer `bpe`: from a file, from the cache, or trained now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from littlelm.errors import UserError
from littlelm.tokenizers.byte_pair import BytePairTokenizer
from littlelm.tokenizers.configs import BpeTokenizerConfig
from littlelm.tokenizers.vocabulary import read_vocabulary

_TRAINING_VERSION = 1  # raise it when the same text would give another vocabulary


def build_bpe(
    config: BpeTokenizerConfig, sources: Sequence[Any] | None = None, cache_dir: str | Path | None = None
) -> BytePairTokenizer:
    """Build the tokenizer; without `path` it is trained on `sources`, once for the same files when there is a cache.

    Raises UserError when there is nothing to train on, or a file cannot be used.
    """
    if config.path is not None:
        return BytePairTokenizer(read_vocabulary(config.path), "bpe")
    if not sources:
        raise UserError(
            "the tokenizer `bpe` is trained on the run's text, and no source is given here; train one with "
            "`little-lm tokenizer train` and name it under `tokenizer.path`"
        )
    from littlelm.tokenizers.training import train_on_sources

    if cache_dir is None:
        return train_on_sources(config, sources)
    directory = Path(cache_dir) / "tokenizers" / training_key(config, sources)
    if (directory / "identity.json").is_file():
        return BytePairTokenizer(read_vocabulary(directory), "bpe")
    tokenizer = train_on_sources(config, sources)
    tokenizer.save(directory)
    return tokenizer


def training_key(config: BpeTokenizerConfig, sources: Sequence[Any]) -> str:
    """Hex name of the training: the config, and each file's path, size and time of change.

    The files are not read for it: a corpus of terabytes must not be read to find that nothing is to be done. A
    corpus copied elsewhere is trained on again and gives the same vocabulary.
    """
    files = []
    for source in sources:
        files.append([source.describe(), source.identity()])
    content = json.dumps([_TRAINING_VERSION, config.model_dump(mode="json"), files], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]
