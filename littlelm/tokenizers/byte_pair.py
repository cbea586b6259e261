"""Byte-pair encoding on tiktoken's engine, and on a faster one for batches where its pattern allows (see `simd`).

Measured with a vocabulary of 8,192 on two cores, two threads each, ratios within one run: tiktoken encodes 1.6 to 4
times as fast as the `tokenizers` library (short documents to long ones) and 1.5 times as fast as rustbpe; the tokens
are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tiktoken

from littlelm.tokenizers.base import Tokenizer
from littlelm.tokenizers.simd import SimdEngine
from littlelm.tokenizers.vocabulary import WHOLE_TEXT, Vocabulary, write_tokenizer_file

# What engines have differed on: both kinds of apostrophe, digits, line ends, runs of white space, other scripts.
_DIFFICULT = [
    "They're I'LL ’s 1 12 123 1234567 3.14 ²³ٱ٣٤٥٦ Ⅷ\r\n\n  x \t\ty  ",
    "naïve café 東京 १२३४ 👍🏽\u200d\u0301 \u00a0\u3000end \u2028 <|endoftext|> <|bos|> a_b-c//d\n\n\n",
    "",
    "   ",
    "K'ſ'S 's",
]


class BytePairTokenizer(Tokenizer):
    """Byte-level BPE: any text round-trips. Pickles as its vocabulary; the engine is built on first use."""

    def __init__(self, vocabulary: Vocabulary, name: str) -> None:
        self.vocabulary = vocabulary
        self.name = name
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for key in ("_engine", "_word_engine", "_id_of_rank", "_simd"):
            state.pop(key, None)
        return state

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """sha256 over the pattern, the merges and the numbering."""
        return self.vocabulary.fingerprint

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        """Token -> priority: the bytes, then the merged tokens in order."""
        ranks = {bytes([byte]): byte for byte in range(256)}
        for first, second in self.vocabulary.merges:
            ranks[first + second] = len(ranks)
        return ranks

    @cached_property
    def _id_of_rank(self) -> np.ndarray:
        """Priority -> token id, uint32: files of others may number their tokens in another order."""
        ids = np.empty(len(self._ranks), dtype=np.uint32)
        for token_id, token in enumerate(self.vocabulary.tokens):
            if token is not None:
                ids[self._ranks[token]] = token_id
        return ids

    @cached_property
    def _engine(self) -> tiktoken.Encoding:
        return tiktoken.Encoding(
            self.name, pat_str=self.vocabulary.pattern, mergeable_ranks=self._ranks, special_tokens={}
        )

    def _encode_array(self, text: str) -> np.ndarray:
        try:
            ranks = self._engine.encode_to_numpy(text, disallowed_special=())
        except UnicodeEncodeError:  # half a surrogate pair is no Unicode text: it becomes U+FFFD
            return self._encode_array(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        except ValueError:
            ranks = self._encode_by_words(text)
        ids: np.ndarray = self._id_of_rank[ranks]
        return ids

    @cached_property
    def _simd(self) -> tuple[SimdEngine | None, str]:
        """The fast engine, or None and why it is not used."""
        try:
            engine = SimdEngine(self.vocabulary)
        except (ImportError, ValueError, RuntimeError) as error:
            return None, str(error).splitlines()[0]
        for text, ids in zip(_DIFFICULT, engine.encode_batch(_DIFFICULT, parallel=False), strict=True):
            if not np.array_equal(ids, self._encode_array(text)):
                return None, f"gigatoken encodes {text!r} otherwise"
        return engine, ""

    @property
    def engine(self) -> str:
        """What encodes batches, with the reason where it is not the fast one."""
        engine, reason = self._simd
        return "gigatoken" if engine is not None else f"tiktoken ({reason})"

    def encode_batch(self, texts: Sequence[str], threads: int | None = None) -> list[np.ndarray]:
        """Token ids of each text, uint32 arrays, on `threads` threads (default: one a usable core)."""
        engine, _ = self._simd
        if engine is None:
            return super().encode_batch(texts, threads)
        try:
            return engine.encode_batch(texts, parallel=threads != 1)
        except (UnicodeEncodeError, TypeError):  # half a surrogate pair: no text that could be handed over
            return super().encode_batch(texts, threads)

    @cached_property
    def _word_engine(self) -> tiktoken.Encoding:
        """Takes the whole text as one word."""
        return tiktoken.Encoding(self.name, pat_str=WHOLE_TEXT, mergeable_ranks=self._ranks, special_tokens={})

    def _encode_by_words(self, text: str) -> np.ndarray:
        """The same encoding for text on which the engine's regular expression gives up.

        Its stack overflows on about a million white-space characters in a row, which pages of the web do hold. The
        `regex` module cuts the text instead, slowly, with its stack on the heap.
        """
        import regex

        words = regex.findall(self.vocabulary.pattern, text, flags=regex.VERSION1)
        return np.concatenate([self._word_engine.encode_to_numpy(word, disallowed_special=()) for word in words])

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """UTF-8 bytes of each token, int32 (vocab_size,); 0 for control tokens."""
        return np.array([len(token or b"") for token in self.vocabulary.tokens], dtype=np.int32)

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """The bytes that tokens stand for. Raises ValueError for an id outside [0, vocab_size)."""
        tokens = self.vocabulary.tokens
        numbers = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if len(numbers) and not (min(numbers) >= 0 and max(numbers) < self.vocab_size):
            raise ValueError(f"token ids must lie in 0..{self.vocab_size - 1}, got {min(numbers)}..{max(numbers)}")
        return b"".join(tokens[number] or b"" for number in numbers)

    def save(self, directory: str | Path) -> None:
        """Write `tokenizer.json` (readable by the `tokenizers` library and transformers) and what identifies it."""
        from littlelm.tokenizers.store import write_identity

        write_tokenizer_file(Path(directory) / "tokenizer.json", self.vocabulary.to_json())
        write_identity(self, directory, bos=self.vocabulary.bos)
