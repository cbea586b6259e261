"""Which items of a benchmark stand in the training text: shared runs of 13 words (Brown et al. 2020, appendix C).

Words are lower-cased and freed of punctuation. A window of the text is compared by a 64-bit polynomial hash, computed
for all windows at once from prefix sums, and only where every word of it occurs in the benchmark at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NGRAM_WORDS = 13
SHORTEST = 8  # words of an item that is compared as a whole; shorter ones say nothing
_WORD = re.compile(r"[^\W_]+")
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_BITS_PER_GRAM = 32  # of the filter that says no to nearly all windows that are not there
_BATCH_WORDS = 500_000

U64 = NDArray[np.uint64]


@dataclass(frozen=True)
class Example:
    """Where the first shared run of words of an item was found."""

    reference: str
    words: str


@dataclass
class Hits:
    """Items (by their number in the index) that were found, and how many documents were searched."""

    found: dict[int, Example] = field(default_factory=dict)
    documents: int = 0

    def merge(self, other: Hits) -> None:
        """Add what another part of the text holds; the earlier example stays."""
        self.found = {**other.found, **self.found}
        self.documents += other.documents


@dataclass(frozen=True)
class TaskReport:
    """One benchmark task: `items` in all, of which `too_short` could not be compared and `found` stand in the text."""

    task: str
    items: int
    too_short: int
    found: int
    examples: list[tuple[str, Example]]  # (item, where)

    @property
    def share(self) -> float:
        """Of the items that could be compared."""
        return self.found / max(1, self.items - self.too_short)


def words_of(text: str) -> list[str]:
    """Lower-cased words without punctuation."""
    return _WORD.findall(text.lower())


class ContaminationIndex:
    """The word n-grams of a benchmark's items, `(task, item, texts)`; the texts of an item are read as one.

    An item of fewer than `ngram_words` words but at least eight is one n-gram of its own length.
    """

    def __init__(self, items: Iterable[tuple[str, str, Sequence[str]]], ngram_words: int = NGRAM_WORDS) -> None:
        self.ngram_words = ngram_words
        self.items: list[tuple[str, str]] = []
        self.too_short: set[int] = set()
        self._ids: dict[str, int] = {}
        by_length: dict[int, list[tuple[U64, int]]] = {}
        for task, item, texts in items:
            number = len(self.items)
            self.items.append((task, item))
            words = words_of(" ".join(texts))
            if len(words) < min(SHORTEST, ngram_words):
                self.too_short.add(number)
                continue
            ids = np.array([self._ids.setdefault(word, len(self._ids)) for word in words], dtype=np.int64)
            length = min(ngram_words, len(words))
            by_length.setdefault(length, []).append((_windows(ids, length), number))
        self._tables = {length: _Table(grams) for length, grams in sorted(by_length.items())}

    def scan(self, documents: Iterable[tuple[str, str]]) -> Hits:
        """Look for the items in `(reference, text)` documents."""
        hits = Hits()
        ids: list[int] = []
        words: list[str] = []
        ends: list[int] = []
        references: list[str] = []
        for reference, text in documents:
            found = words_of(text)
            words += [*found, ""]
            ids += [*(self._ids.get(word, -1) for word in found), -1]  # no window crosses the end of a document
            ends.append(len(words))
            references.append(reference)
            hits.documents += 1
            if len(words) >= _BATCH_WORDS:
                self._search(ids, words, ends, references, hits)
                ids, words, ends, references = [], [], [], []
        if words:
            self._search(ids, words, ends, references, hits)
        return hits

    def _search(self, ids: list[int], words: list[str], ends: list[int], references: list[str], hits: Hits) -> None:
        numbers = np.array(ids, dtype=np.int64)
        unknown = np.concatenate([[0], np.cumsum(numbers < 0)])
        for length, table in self._tables.items():
            if len(numbers) < length:
                continue
            starts = np.flatnonzero(unknown[length:] == unknown[:-length])
            grams = _windows(numbers, length)[starts]
            for place in table.find(grams).tolist():
                for item in table.items_of(grams[place]):
                    if item not in hits.found:
                        start = int(starts[place])
                        document = int(np.searchsorted(ends, start, side="right"))
                        hits.found[item] = Example(references[document], " ".join(words[start : start + length]))

    def report(self, hits: Hits, examples: int = 3) -> list[TaskReport]:
        """One report a task, in the order of the items."""
        tasks = list(dict.fromkeys(task for task, _ in self.items))
        numbers: dict[str, list[int]] = {task: [] for task in tasks}
        for number, (task, _) in enumerate(self.items):
            numbers[task].append(number)
        reports = []
        for task in tasks:
            found = [number for number in numbers[task] if number in hits.found]
            reports.append(
                TaskReport(
                    task,
                    len(numbers[task]),
                    sum(number in self.too_short for number in numbers[task]),
                    len(found),
                    [(self.items[number][1], hits.found[number]) for number in found[:examples]],
                )
            )
        return reports


class _Table:
    """Hashes of n-grams of one length, and the items that have each."""

    def __init__(self, grams: list[tuple[U64, int]]) -> None:
        keys = np.concatenate([each for each, _ in grams])
        items = np.concatenate([np.full(len(each), number, dtype=np.int32) for each, number in grams])
        order = np.argsort(keys, kind="stable")
        self._keys, self._items = keys[order], items[order]
        self._bits = max(3, (_BITS_PER_GRAM * len(keys) - 1).bit_length())
        self._filter = np.zeros(1 << (self._bits - 3), dtype=np.uint8)
        byte, bit = self._place(keys)
        np.bitwise_or.at(self._filter, byte, bit)

    def find(self, grams: U64) -> NDArray[np.int64]:
        """Which of the n-grams are here: a bit each says no to nearly all that are not, the others are looked up."""
        byte, bit = self._place(grams)
        maybe = np.flatnonzero(self._filter[byte] & bit)
        place = np.minimum(np.searchsorted(self._keys, grams[maybe]), len(self._keys) - 1)
        found: NDArray[np.int64] = maybe[self._keys[place] == grams[maybe]]
        return found

    def _place(self, grams: U64) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """(byte of the filter, bit in it) of each n-gram."""
        place = (grams * np.uint64(_BASE)) >> np.uint64(64 - self._bits)
        return (place >> np.uint64(3)).astype(np.int64), np.left_shift(1, place & np.uint64(7)).astype(np.uint8)

    def items_of(self, gram: np.uint64) -> list[int]:
        """The items that have this n-gram."""
        first, last = np.searchsorted(self._keys, gram, side="left"), np.searchsorted(self._keys, gram, side="right")
        found: list[int] = np.unique(self._items[first:last]).tolist()
        return found


def _windows(ids: NDArray[np.int64], length: int) -> U64:
    """(n - length + 1,) hash of each window: sum of (id + 1) BASE^place, places counted from the window's start."""
    n = len(ids)
    powers, inverses = _powers(_BASE, n), _powers(pow(_BASE, -1, 2**64), n)
    mixed = _mix((ids + 1).astype(np.uint64))
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(mixed * powers[:n], dtype=np.uint64)])
    windows: U64 = (sums[length:] - sums[: n - length + 1]) * inverses[: n - length + 1]
    return windows


def _powers(base: int, count: int) -> U64:
    """1, base, base^2, ... modulo 2^64."""
    factors = np.full(count + 1, base, dtype=np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _mix(values: U64) -> U64:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
