"""One token a byte."""

from __future__ import annotations

import numpy as np

from littlelm.tokenizers.byte_pair import BytePairTokenizer
from littlelm.tokenizers.configs import ByteTokenizerConfig
from littlelm.tokenizers.vocabulary import BOS, WHOLE_TEXT, Vocabulary


class ByteTokenizer(BytePairTokenizer):
    """Byte-pair encoding without a single merge: ids 0-255 are the bytes, 256 is <|bos|>."""

    name = "byte"

    def __init__(self) -> None:
        super().__init__(Vocabulary.of_merges(WHOLE_TEXT, list(range(256)), [], BOS), self.name)

    def _encode_array(self, text: str) -> np.ndarray:
        try:
            raw = text.encode()
        except UnicodeEncodeError:  # half a surrogate pair is no Unicode text: it becomes U+FFFD
            raw = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        return np.frombuffer(raw, dtype=np.uint8).astype(np.uint32)


def build_byte(config: ByteTokenizerConfig, sources: object = None, cache_dir: object = None) -> ByteTokenizer:
    """Build the byte tokenizer; it needs neither text nor a cache."""
    return ByteTokenizer()
