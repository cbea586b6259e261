"""A byte-level BPE vocabulary, and the `tokenizer.json` file that holds it.

The file is the one of the `tokenizers` library, so that what is trained here loads in transformers and the other way
round. Only plain byte-level BPE can be represented: every one of the 256 bytes has a token, each merge makes one new
token, nothing rewrites the text before it is cut.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from littlelm.errors import UserError
from littlelm.filesystem import make_directories, write_atomically

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 cuts text into words (Radford et al. 2019, its released encoder)."""

WHOLE_TEXT = r"[\s\S]+"
"""Cuts nothing: the text is one word."""

BOS = "<|bos|>"


def gpt4_pattern(max_digits: int) -> str:
    """How GPT-4 cuts text (tiktoken's cl100k_base, contractions spelled out), `max_digits` digits a word at most."""
    contractions = r"'(?:[sdmtSDMT]|[lL][lL]|[vV][eE]|[rR][eE])"
    words = r"[^\r\n\p{L}\p{N}]?+\p{L}+"
    numbers = r"\p{N}" + f"{{1,{max_digits}}}"
    return "|".join([contractions, words, numbers, r" ?[^\s\p{L}\p{N}]++[\r\n]*", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"])


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a tokenizer.json (GPT-2's table)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


_CHARACTERS = byte_characters()
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}


@dataclass(frozen=True)
class Vocabulary:
    """Everything that decides how text is encoded.

    `tokens[id]` is a token's bytes, None for a control token or an id that is not used; `merges` lists the two halves
    of each merged token in the order of their priority.
    """

    pattern: str
    tokens: tuple[bytes | None, ...]
    merges: tuple[tuple[bytes, bytes], ...]
    control: tuple[tuple[str, int], ...]
    bos: str

    @property
    def bos_id(self) -> int:
        return dict(self.control)[self.bos]

    @property
    def fingerprint(self) -> str:
        """sha256 over every field, hex."""
        content = [
            self.pattern,
            [None if token is None else token.hex() for token in self.tokens],
            [[first.hex(), second.hex()] for first, second in self.merges],
            [list(item) for item in self.control],
            self.bos,
        ]
        return hashlib.sha256(json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()

    @classmethod
    def of_merges(cls, pattern: str, byte_order: list[int], merges: list[tuple[bytes, bytes]], bos: str) -> Vocabulary:
        """The usual numbering: the bytes first, then the merged tokens by priority, then BOS."""
        tokens: list[bytes | None] = [bytes([byte]) for byte in byte_order]
        tokens += [first + second for first, second in merges]
        return cls(pattern, (*tokens, None), tuple(merges), ((bos, len(tokens)),), bos)

    def to_json(self) -> str:
        """The content of a tokenizer.json that the `tokenizers` library reads as the same encoding."""
        added = [
            {
                "id": token_id,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text, token_id in self.control
        ]
        vocab = {_written(token): i for i, token in enumerate(self.tokens) if token is not None}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        split = {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": False}
        content = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocab | dict(self.control),
                "merges": [[_written(first), _written(second)] for first, second in self.merges],
            },
        }
        return json.dumps(content, ensure_ascii=False, indent=1)


def read_vocabulary(path: str | Path, bos: str | None = None) -> Vocabulary:
    """Read a tokenizer.json. `bos` names the control token that starts a document; by default the one there is.

    Raises UserError for a missing or damaged file and for an encoding that is not plain byte-level BPE.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no tokenizer at '{path}'; make one with `little-lm tokenizer train`") from None
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' is not a readable tokenizer.json: {error}") from None
    try:
        return _vocabulary(content, bos)
    except _NotPlain as reason:
        raise UserError(
            f"'{path}': {reason}; only plain byte-level BPE can be used (train one with `little-lm tokenizer train`)"
        ) from None
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise UserError(f"'{path}' is not a complete tokenizer.json ({type(error).__name__}: {error})") from None


def read_merges(tokenizer_json: str) -> list[tuple[bytes, bytes]]:
    """The merges in a tokenizer.json's content, in order."""
    return [_merge(item) for item in json.loads(tokenizer_json)["model"]["merges"]]


def write_tokenizer_file(path: Path, content: str) -> None:
    """Write a tokenizer's file durably, with its directory; several processes may at once.

    Raises UserError when the place cannot be written, e.g. for want of room.
    """
    try:
        make_directories(path.parent)
        write_atomically(path, content.encode("utf-8"), many_writers=True)
    except OSError as error:
        raise UserError(f"cannot write the tokenizer to '{path}': {error.strerror}") from None


class _NotPlain(Exception):
    """The file describes an encoding that `Vocabulary` cannot represent."""


def _vocabulary(content: dict[str, Any], bos: str | None) -> Vocabulary:
    model = content["model"]
    if model.get("type", "BPE") != "BPE":
        raise _NotPlain(f"its model is {model['type']}")
    if content.get("normalizer"):
        raise _NotPlain(f"it rewrites text with the normalizer {content['normalizer'].get('type')}")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"):
        if model.get(key):
            raise _NotPlain(f"it uses {key}")
    control = tuple(sorted(((token["content"], token["id"]) for token in content["added_tokens"]), key=lambda t: t[1]))
    names = dict(control)
    merges = [_merge(item) for item in model["merges"]]
    ids = {_read(text): token_id for text, token_id in model["vocab"].items() if text not in names}
    missing = [byte for byte in range(256) if bytes([byte]) not in ids]
    if missing:
        raise _NotPlain(f"{len(missing)} of the 256 bytes have no token, so some text could not be encoded")
    made = {first + second for first, second in merges}
    if len(made) != len(merges) or made | {bytes([byte]) for byte in range(256)} != set(ids):
        raise _NotPlain("its merges do not make each of its tokens exactly once")
    tokens: list[bytes | None] = [None] * (1 + max([*ids.values(), *names.values()]))
    for token, token_id in ids.items():
        tokens[token_id] = token
    return Vocabulary(_pattern(content["pre_tokenizer"]), tuple(tokens), tuple(merges), control, _bos(names, bos))


def _bos(names: dict[str, int], bos: str | None) -> str:
    usual = [bos] if bos is not None else [BOS, "<|endoftext|>", "<|begin_of_text|>", "<s>"]
    for name in usual:
        if name in names:
            return name
    if bos is None and len(names) == 1:
        return next(iter(names))
    raise _NotPlain(
        f"no control token marks the start of a document (looked for {', '.join(usual)}; "
        f"it has {', '.join(names) or 'none'})"
    )


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    if pre_tokenizer is None:
        raise _NotPlain("it has no byte-level pre-tokenizer")
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    kinds = [step["type"] for step in steps]
    if any(step.get("add_prefix_space") for step in steps):
        raise _NotPlain("it adds a space before the text")
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return GPT2_PATTERN
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
        split = steps[0]
        if split["behavior"] == "Isolated" and not split.get("invert") and "Regex" in split["pattern"]:
            return str(split["pattern"]["Regex"])
    raise _NotPlain(f"it cuts text by {' + '.join(kinds)} in a way that is not supported")


def _merge(item: str | list[str]) -> tuple[bytes, bytes]:
    first, second = item.split(" ") if isinstance(item, str) else item
    return _read(first), _read(second)


def _read(text: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in text)
    except KeyError:
        raise _NotPlain(f"its token {text!r} is not written as bytes") from None


def _written(token: bytes) -> str:
    return "".join(_CHARACTERS[byte] for byte in token)
