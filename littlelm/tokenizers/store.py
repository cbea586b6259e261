"""Saved tokenizers: `tokenizer.json` with the vocabulary, `identity.json` with what it must turn out to be."""

from __future__ import annotations

import json
from pathlib import Path

from littlelm.errors import UserError
from littlelm.tokenizers.base import Tokenizer, check_fingerprint
from littlelm.tokenizers.vocabulary import read_vocabulary, write_tokenizer_file

SCHEMA_VERSION = 1


def write_identity(tokenizer: Tokenizer, directory: str | Path, bos: str) -> None:
    """Write `identity.json` beside the vocabulary; it is written last, so its presence means a whole tokenizer."""
    content = {"schema_version": SCHEMA_VERSION, **tokenizer.identity, "bos": bos, "bos_id": tokenizer.bos_id}
    write_tokenizer_file(Path(directory) / "identity.json", json.dumps(content, indent=1) + "\n")


def load(directory: str | Path) -> Tokenizer:
    """Read back what `Tokenizer.save(directory)` wrote.

    Raises UserError when the directory holds none, or when the vocabulary is not the one that was saved.
    """
    directory = Path(directory)
    try:
        identity = json.loads((directory / "identity.json").read_text(encoding="utf-8"))
        version, name, bos = identity["schema_version"], identity["name"], identity["bos"]
    except FileNotFoundError:
        raise UserError(f"no saved tokenizer in '{directory}' (it holds no identity.json)") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{directory / 'identity.json'}' cannot be read ({error!r}); save the tokenizer again"
        ) from None
    if version != SCHEMA_VERSION:
        raise UserError(
            f"'{directory}' was written by another version of little-lm (tokenizer schema {version}, this one reads "
            f"{SCHEMA_VERSION}); update little-lm or prepare the data again"
        )
    from littlelm.tokenizers.byte import ByteTokenizer
    from littlelm.tokenizers.byte_pair import BytePairTokenizer

    vocabulary = read_vocabulary(directory / "tokenizer.json", bos)
    tokenizer = ByteTokenizer() if name == ByteTokenizer.name else BytePairTokenizer(vocabulary, name)
    if vocabulary.fingerprint != tokenizer.fingerprint or identity["fingerprint"] != tokenizer.fingerprint:
        check_fingerprint(identity, tokenizer, f"'{directory}' (its tokenizer.json was changed afterwards)")
        raise UserError(f"'{directory}': tokenizer.json is not the byte tokenizer that identity.json names")
    return tokenizer
