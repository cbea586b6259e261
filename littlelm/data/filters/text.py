"""What is done to the text of a document before anything else."""

from __future__ import annotations

import re
import unicodedata

from littlelm.data.filters.configs import TextConfig

# C0 and C1 controls but for tab, line feed and carriage return; DEL; the byte-order mark.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff]")


def whole_characters(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which no encoding can write."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def normalise(text: str, config: TextConfig) -> str:
    """The text as it is tokenized."""
    if config.control_characters == "remove" and _CONTROL.search(text):
        text = _CONTROL.sub("", text)
    if config.unicode == "nfc" and not unicodedata.is_normalized("NFC", text):
        text = unicodedata.normalize("NFC", text)
    return text
