"""The tokenizer of a Hugging Face directory, as it is, for evaluating the model beside it.

Unlike the tokenizers a model is trained with here, it may be any that the `tokenizers` library reads: a split of digits
before the words, bytes without a token, a normalizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from littlelm.errors import UserError
from littlelm.tokenizers.base import Tokenizer
from littlelm.tokenizers.vocabulary import byte_characters

_BYTE_OF = {character: byte for byte, character in enumerate(byte_characters())}
_PIECE = 4096  # texts encoded in one call


class HFTokenizer(Tokenizer):
    """tokenizer.json of a directory; BOS is `bos_token` of tokenizer_config.json, else `bos_token_id` of config.json.

    Raises:
        UserError: a file is missing or damaged, or no BOS is named.
    """

    name = "hf"

    def __init__(self, directory: Path):
        import tokenizers

        path = directory / "tokenizer.json"
        try:
            raw = path.read_bytes()
            self._engine = tokenizers.Tokenizer.from_str(raw.decode("utf-8"))
        except FileNotFoundError:
            raise UserError(f"{directory}: holds no tokenizer.json, so its model cannot be given text") from None
        except Exception as error:  # the library raises bare Exception for a file it cannot read
            raise UserError(f"{path}: is no readable tokenizer.json: {error}") from None
        self._engine.no_truncation()
        self._engine.no_padding()
        self._engine.encode_special_tokens = True  # text that looks like a control token is text
        self.vocab_size = self._engine.get_vocab_size(with_added_tokens=True)
        self.bos_id = self._find_bos(directory)
        self.bos: str = self._engine.id_to_token(self.bos_id) or ""
        self.eos_id: int | None = self._find(directory, "eos_token")
        self.fingerprint = hashlib.sha256(raw + f"\nbos {self.bos_id}".encode()).hexdigest()

    def _find_bos(self, directory: Path) -> int:
        found = self._find(directory, "bos_token")
        if found is None:
            raise UserError(
                f"{directory}: neither tokenizer_config.json (bos_token) nor config.json (bos_token_id) names the "
                "token that begins a text; add one"
            )
        return found

    def _find(self, directory: Path, name: str) -> int | None:
        configured = _read_json(directory / "tokenizer_config.json").get(name)
        text = configured.get("content") if isinstance(configured, dict) else configured
        found = self._engine.token_to_id(text) if isinstance(text, str) else None
        if found is None:
            found = _read_json(directory / "config.json").get(f"{name}_id")
        return found if isinstance(found, int) else None

    def _encode_array(self, text: str) -> np.ndarray:
        return np.asarray(self._engine.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def encode_batch(self, texts: Sequence[str], threads: int | None = None) -> list[np.ndarray]:
        """Token ids of each text, uint32 arrays; the library takes all cores."""
        found: list[np.ndarray] = []
        for begin in range(0, len(texts), _PIECE):
            part = list(texts[begin : begin + _PIECE])
            encoded = self._engine.encode_batch_fast(part, add_special_tokens=False)
            found += [np.asarray(one.ids, dtype=np.uint32) for one in encoded]
        return found

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """UTF-8 bytes of each token, int32 (vocab_size,); 0 for control tokens."""
        control = {number for number, token in self._engine.get_added_tokens_decoder().items() if token.special}
        sizes = np.zeros(self.vocab_size, dtype=np.int32)
        for token, number in self._engine.get_vocab(with_added_tokens=True).items():
            if number not in control:
                sizes[number] = len(_bytes_of(token))
        return sizes

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """The bytes that tokens stand for."""
        tokens = [self._engine.id_to_token(int(number)) for number in ids]
        if None in tokens:
            raise ValueError(f"token ids must lie in 0..{self.vocab_size - 1}")
        return b"".join(_bytes_of(token) for token in tokens if token is not None)

    def save(self, directory: str | Path) -> None:
        """Write tokenizer.json."""
        self._engine.save(str(Path(directory) / "tokenizer.json"))


def _bytes_of(token: str) -> bytes:
    """Of a byte-level vocabulary each character is a byte; of another (SentencePiece) the text, its mark a space."""
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return token.replace("▁", " ").encode("utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}
