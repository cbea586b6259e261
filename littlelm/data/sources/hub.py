"""A data set of a hub as a source: nothing is fetched to know what it consists of, and each file is when it is needed.

A file is cut into slices, a shard of tokens each, by its size alone; which documents a slice has is found out from the
file when it is here (row groups of parquet, lines of JSON Lines).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from littlelm import registry
from littlelm.data.hub.client import Hub, Patience
from littlelm.data.hub.configs import HubDownloadConfig, Selection
from littlelm.data.hub.download import RemoteFile
from littlelm.data.hub.listing import HubFile, Listing
from littlelm.data.source_configs import source_for_files
from littlelm.data.sources.base import Record, RecordPart, Source, SourcePart, Unit, contiguous_groups, records_of
from littlelm.errors import UserError

_BYTES_PER_TOKEN = 4  # of text, roughly
_SAMPLE_BYTES = 1_000_000_000  # of text, which `split` gives: as much as a tokenizer is trained on
_SPLITTABLE = re.compile(r"\.(parquet|jsonl|ndjson|json)$", re.IGNORECASE)
_COMPRESSED = re.compile(r"\.(parquet|gz|zst)$", re.IGNORECASE)
_READABLE = re.compile(r"\.(parquet|(jsonl|ndjson|json)(\.gz|\.zst)?|txt|md|text)$", re.IGNORECASE)


@dataclass(frozen=True)
class HubPart(RecordPart):
    """Slice `index` of `count` of a file that is here."""

    path: Path
    name: str  # in the repository
    column: str
    index: int
    count: int

    def file_names(self) -> list[str]:
        return [self.name]

    def records(self) -> Iterator[Record]:
        """Yield the records, as the source of files of that kind reads them. A small file leaves slices empty."""
        parts = registry.build(source_for_files(str(self.path), self.column)).split(self.count)
        if self.index < len(parts):
            yield from records_of(parts[self.index])


@dataclass(frozen=True)
class FetchedPart(RecordPart):
    """Slices of files that are fetched when they are read; for the parent process, before any training."""

    slices: tuple[tuple[RemoteFile, HubPart], ...]

    def file_names(self) -> list[str]:
        return list(dict.fromkeys(part.name for _, part in self.slices))

    def records(self) -> Iterator[Record]:
        """Yield the records, fetching each file first. Raises UserError for what cannot be fetched."""
        numbers = {name: number for number, name in enumerate(self.file_names())}
        for remote, part in self.slices:
            remote.fetch(lambda count: None)
            for record in part.records():
                yield record._replace(file=numbers[part.name])


class HubSource(Source):
    """A data set of a hub; see the configs in `hub/configs.py`. `resolve` must have been called before all else.

    `units` are all there is. `documents`, `split` and `files` are of the first files only, about a gigabyte of text:
    enough to train a tokenizer on or to look at.
    """

    def __init__(self, config: HubDownloadConfig) -> None:
        self.config = config
        self.selection: Selection = config.selection()
        self.parallel_downloads = config.parallel_downloads
        self.keep_raw = config.keep_raw
        self.tokens_per_raw_byte: float = config.tokens_per_raw_byte
        patience = Patience(config.retries, config.backoff_seconds, config.stall_seconds)
        self.hub = Hub(config.endpoint.rstrip("/") if config.endpoint else None, patience)
        self.commit = ""
        self._all: list[HubFile] | None = None
        self._remotes: list[RemoteFile] = []
        self._held_out: HubSource | None = None

    def resolve(self, cache_dir: Path, say: Callable[[str], None]) -> None:
        """Find out the commit and its files, from the hub or from what an earlier call kept in `cache_dir`.

        Raises UserError: no network, no access, no such data set, revision or file (with the nearest name).
        """
        if self._all is not None:
            return
        directory = cache_dir / "hub" / self.selection.repo.replace("/", "--")
        listing = Listing(self.hub, self.selection.repo, self.config.revision, directory, say)
        held_out = listing.select(self.selection.held_out)
        names = {file.name for file in held_out}
        files = [file for file in listing.select(self.selection.files) if file.name not in names]
        for file in [*files, *held_out]:
            if not _READABLE.search(file.name):
                raise UserError(
                    f"{self.selection.repo}: '{file.name}' is no .parquet, .jsonl or .txt file (.gz, .zst); "
                    "set `files` of the source to those that are"
                )
        if not files:
            raise UserError(
                f"{self.selection.repo}: every file that `files` names is one of `held_out`: nothing is left to train "
                "on"
            )
        if held_out:
            self._held_out = self._of(listing.commit, directory, held_out)
        self._take(listing.commit, directory, files)
        say(f"{self.describe()}; it takes what the run needs of {self.size() / 1e9:,.1f} GB")

    def _of(self, commit: str, directory: Path, files: list[HubFile]) -> HubSource:
        """A source of some of the files, all of which it reads."""
        other = HubSource(self.config)
        other._take(commit, directory, files, all_of_them=True)
        return other

    def _take(self, commit: str, directory: Path, files: list[HubFile], all_of_them: bool = False) -> None:
        self.commit, self._all = commit, files
        used = files if all_of_them else files[: self.config.max_files]
        self._remotes = [RemoteFile(self.hub, self.selection.repo, commit, file, directory) for file in used]

    def remotes(self) -> list[RemoteFile]:
        """The files that are read for training, in order."""
        self._listed()
        return self._remotes

    def _listed(self) -> list[HubFile]:
        if self._all is None:
            raise RuntimeError("HubSource.resolve(cache_dir, say) must be called first")
        return self._all

    def identity(self) -> Any:
        """Repository, commit, and the name and digest of every file, however many of them are read."""
        return [self.selection.repo, self.commit, [[file.name, file.digest] for file in self._listed()]]

    def size(self) -> int:
        """Bytes of the files, here or not."""
        return sum(remote.size for remote in self.remotes())

    def text_bytes(self) -> int:
        """Bytes of text in them, by `tokens_per_raw_byte`."""
        return int(self.size() * self.tokens_per_raw_byte * _BYTES_PER_TOKEN)

    def describe(self) -> str:
        used, there = len(self.remotes()), len(self._listed())
        count = f"{used:,}" if used == there else f"{used:,} of {there:,}"
        files = f"{count} file{'s' if there != 1 else ''}"
        return (
            f"{self.config.name}: {self.selection.repo} at {self.commit[:12]}, {files}, "
            f"{self.size() / 1e9:,.2f} GB, column '{self.selection.column}'"
        )

    def units(self, shard_tokens: int) -> list[Unit]:
        """All slices of all files in order, none of which need be here."""
        units = []
        for remote in self.remotes():
            count = _slices(remote.name, remote.size, shard_tokens)
            units += [Unit(self._part(remote, i, count), _share(remote.size, i, count), remote) for i in range(count)]
        return units

    def _part(self, remote: RemoteFile, index: int, count: int) -> HubPart:
        return HubPart(remote.local, remote.name, self.selection.column, index, count)

    def held_out(self) -> HubSource | None:
        """The files that are for validation; None where the config names none."""
        self._listed()
        return self._held_out

    def sample(self) -> list[RemoteFile]:
        """The first files, with about a gigabyte of text."""
        chosen: list[RemoteFile] = []
        text = 0.0
        for remote in self.remotes():
            if text >= _SAMPLE_BYTES:
                break
            chosen.append(remote)
            text += remote.size * self.tokens_per_raw_byte * _BYTES_PER_TOKEN
        return chosen

    def files(self) -> list[Path]:
        """Where the sample's files lie, or will lie."""
        return [remote.local for remote in self.sample()]

    def split(self, n: int) -> list[SourcePart]:
        """The sample in at most `n` parts, which fetch their files when they are read."""
        sample = self.sample()
        each = max(1, n // len(sample))
        counts = [each if _SPLITTABLE.search(remote.name) else 1 for remote in sample]
        slices = [
            (remote, self._part(remote, i, count))
            for remote, count in zip(sample, counts, strict=True)
            for i in range(count)
        ]
        weights = [_share(remote.size, part.index, part.count) for remote, part in slices]
        return [FetchedPart(tuple(slices[i] for i in run)) for run in contiguous_groups(weights, n)]


def _slices(name: str, size: int, shard_tokens: int) -> int:
    """How many shards a file becomes: by its size as listed, whatever it turns out to hold."""
    if not _SPLITTABLE.search(name):
        return 1  # a compressed stream can only be read from its beginning, a text file is one document
    compression = 2.5 if _COMPRESSED.search(name) else 1.0  # bytes of text a byte holds, roughly
    return max(1, round(size * compression / (_BYTES_PER_TOKEN * shard_tokens)))


def _share(size: int, index: int, count: int) -> int:
    """Bytes of slice `index` of `count`; all slices add up to `size`."""
    return size * (index + 1) // count - size * index // count
