"""Typed configs of the `filter` kind, and of what is done to text before anything else. Free of numpy."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from littlelm.config.base import ComponentConfig, ConfigModel, Count
from littlelm.registry import declare_kind, register_lazy

_LANGUAGES = (  # that the model tells apart
    "af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce ceb ckb co cs cv cy da "
    "de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl gn gom gu gv he hi hif hr hsb ht hu hy ia id "
    "ie ilo io is it ja jbo jv ka kk km kn ko krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn "
    "mr mrj ms mt mwl my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru rue "
    "sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk ur uz vec vep vi vls vo "
    "wa war wuu xal xmf yi yo yue zh"
).split()

declare_kind(
    "filter",
    "leaves documents out: accepts(text) -> bool; or, to compare documents, signature_bytes, signature(text) -> bytes "
    "and drop(digests, signatures) -> masks of documents that are copies of earlier ones; picklable",
)


class TextConfig(ConfigModel):
    """What is done to the text of a document before anything else."""

    unicode: Literal["none", "nfc"] = Field(
        "none", description="nfc: composed normal form, so that é is one character however it was written"
    )
    control_characters: Literal["keep", "remove"] = Field(
        "keep", description="remove: control characters (but for tab and line ends) and byte-order marks go"
    )
    max_invalid_fraction: float = Field(
        0.01,
        ge=0,
        le=1,
        description="share of a shard's records that may be no valid UTF-8; they are left out and counted, and more of "
        "them are an error",
    )


@register_lazy("filter", "length", "littlelm.data.filters.length:Length")
class LengthConfig(ComponentConfig):
    """Keeps documents of a length between limits."""

    min_characters: Count | None = Field(None, ge=1, description="shorter ones are left out")
    max_characters: Count | None = Field(None, ge=1, description="longer ones are left out")
    min_words: Count | None = Field(None, ge=1, description="of words, as white space divides them")
    max_words: Count | None = Field(None, ge=1, description="of words, as white space divides them")

    @model_validator(mode="after")
    def _limits_make_sense(self) -> LengthConfig:
        if all(value is None for value in self.model_dump().values()):
            raise ValueError("length: give at least one of min_characters, max_characters, min_words, max_words")
        for unit in ("characters", "words"):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"length: min_{unit} {low} is more than max_{unit} {high}; nothing would be kept")
        return self


@register_lazy("filter", "language", "littlelm.data.filters.language:Language")
class LanguageConfig(ComponentConfig):
    """Keeps documents in some languages, by the first thousand characters (fastText's lid.176, Joulin et al. 2017)."""

    keep: list[str] = Field(min_length=1, description="ISO 639 codes in lower case, for example en, de, zh")
    min_confidence: float = Field(0.5, ge=0, le=1, description="of the language that is found, 0 to 1")

    @field_validator("keep")
    @classmethod
    def _are_codes(cls, codes: list[str]) -> list[str]:
        for code in codes:
            if not re.fullmatch(r"[a-z]{2,3}", code):
                raise ValueError(f"language: '{code}' is no ISO 639 code such as en or de{_like(code.lower())}")
            if code not in _LANGUAGES:
                raise ValueError(f"language: the model does not know '{code}', nothing would be kept{_like(code)}")
        return codes


def _like(code: str) -> str:
    close = [each for each in _LANGUAGES if each[:1] == code[:1]]
    return f"; codes that begin with {code[:1]}: {', '.join(close)}" if close else ""


@register_lazy("filter", "regex", "littlelm.data.filters.pattern:Pattern")
class RegexConfig(ComponentConfig):
    """Leaves out documents in which a pattern is found."""

    drop: list[str] = Field(min_length=1, description="regular expressions of Python, for example '(?i)lorem ipsum'")

    @field_validator("drop")
    @classmethod
    def _compile(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"regex: '{pattern}' is no regular expression: {error}") from None
        return patterns


@register_lazy("filter", "exact_duplicates", "littlelm.data.filters.duplicates:ExactDuplicates")
class ExactDuplicatesConfig(ComponentConfig):
    """Keeps the first of documents with the same text; those of the validation set are first."""


@register_lazy("filter", "near_duplicates", "littlelm.data.filters.near_duplicates:NearDuplicates")
class NearDuplicatesConfig(ComponentConfig):
    """Keeps the first of documents that are nearly the same, by MinHash of their word n-grams (Broder 1997).

    Documents are compared through all sources; needs 4 bytes of memory a permutation and document.
    """

    threshold: float = Field(0.8, gt=0, lt=1, description="Jaccard similarity of n-grams from which two are the same")
    ngram_words: int = Field(5, ge=1, description="words of an n-gram")
    permutations: int = Field(128, ge=16, le=1024, description="hash functions; more tell similarities apart better")
