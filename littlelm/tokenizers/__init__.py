"""Text to tokens and back. Importing this package loads no tokenizer library; the first use does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from littlelm.tokenizers.base import Tokenizer, check_fingerprint
    from littlelm.tokenizers.store import load
    from littlelm.tokenizers.training import train_bpe, train_to_file

__all__ = ["Tokenizer", "check_fingerprint", "load", "train_bpe", "train_to_file"]

_WHERE = {
    "Tokenizer": "littlelm.tokenizers.base",
    "check_fingerprint": "littlelm.tokenizers.base",
    "load": "littlelm.tokenizers.store",
    "train_bpe": "littlelm.tokenizers.training",
    "train_to_file": "littlelm.tokenizers.training",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE[name]), name)
