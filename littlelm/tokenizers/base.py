"""What every tokenizer provides, and the check that two places mean the same one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from littlelm.errors import UserError

_CHUNK_TEXTS = 32  # texts a thread takes at a time: handing over one by one costs more than encoding a short text


class Tokenizer(ABC):
    """Text <-> token ids in [0, vocab_size). Picklable; ids of text never are control tokens."""

    name: str
    vocab_size: int
    bos_id: int
    fingerprint: str  # sha256 (hex) over everything that decides how text is encoded

    @abstractmethod
    def _encode_array(self, text: str) -> np.ndarray:
        """Token ids of a text, uint32 (n,)."""

    @cached_property
    @abstractmethod
    def token_bytes(self) -> np.ndarray:
        """UTF-8 bytes of each token, int32 (vocab_size,); 0 for control tokens."""

    @abstractmethod
    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """The bytes that tokens stand for; a control token stands for none. Raises ValueError for an unknown id."""

    @abstractmethod
    def save(self, directory: str | Path) -> None:
        """Write the tokenizer so that `littlelm.tokenizers.load(directory)` gives an equal one."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without BOS. Text that looks like a control token is encoded as the text it is."""
        ids: list[int] = self._encode_array(text).tolist()
        return ids

    def encode_batch(self, texts: Sequence[str], threads: int | None = None) -> list[np.ndarray]:
        """Token ids of each text, uint32 arrays, on `threads` threads (default: one a usable core)."""
        threads = min(threads or usable_cores(), -(-len(texts) // _CHUNK_TEXTS))
        if threads <= 1:
            return [self._encode_array(text) for text in texts]
        chunks = [texts[start : start + _CHUNK_TEXTS] for start in range(0, len(texts), _CHUNK_TEXTS)]
        encode_chunk: Callable[[Sequence[str]], list[np.ndarray]] = lambda chunk: [self._encode_array(t) for t in chunk]  # noqa: E731
        with ThreadPoolExecutor(threads) as pool:
            return [ids for chunk in pool.map(encode_chunk, chunks) for ids in chunk]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of the tokens; bytes that are no valid UTF-8 become U+FFFD, control tokens become nothing."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    @property
    def identity(self) -> dict[str, Any]:
        """What a manifest or checkpoint records of the tokenizer: name, vocab_size, fingerprint."""
        return {"name": self.name, "vocab_size": self.vocab_size, "fingerprint": self.fingerprint}


def check_fingerprint(expected: str | Mapping[str, Any], tokenizer: Tokenizer, where: str) -> None:
    """Raise UserError unless `where` (e.g. "the prepared data in X") was made with this very tokenizer.

    `expected` is what was recorded there: a fingerprint, or the whole `Tokenizer.identity`.
    """
    recorded = {"fingerprint": expected} if isinstance(expected, str) else dict(expected)
    if recorded.get("fingerprint") == tokenizer.fingerprint:
        return
    raise UserError(
        f"two different tokenizers: {where} was made with {_introduce(recorded)}, but this run's is "
        f"{_introduce(tokenizer.identity)}; the same number means another piece of text in each. Set `tokenizer` to "
        f"the one it was made with, or make it again with this one"
    )


def _introduce(identity: Mapping[str, Any]) -> str:
    known = [f"'{identity['name']}'"] if identity.get("name") else ["a tokenizer"]
    if identity.get("vocab_size"):
        known.append(f"of {identity['vocab_size']:,} tokens")
    return " ".join([*known, f"(fingerprint {str(identity.get('fingerprint'))[:12]})"])


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
