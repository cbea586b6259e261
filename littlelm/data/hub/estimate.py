"""What a run will take of a data set before anything is fetched: files, gigabytes, disk, time. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from littlelm.errors import UserError
from littlelm.filesystem import free_bytes


class Downloaded(Protocol):
    """A file's size, and whether it is here."""

    @property
    def size(self) -> int: ...

    def is_here(self) -> bool: ...


class Remotes(Protocol):
    """What is estimated: a source that is downloaded."""

    tokens_per_raw_byte: float
    keep_raw: bool
    parallel_downloads: int

    def remotes(self) -> Sequence[Downloaded]: ...


@dataclass(frozen=True)
class Estimate:
    """What a number of tokens takes. Bytes unless said otherwise."""

    files: int  # to be read
    files_there: int
    raw: int  # of those files
    held_out: int  # of the files for validation, which are always fetched
    download: int  # of what is not here yet
    tokens: int  # number of tokens those files hold, roughly
    token_bytes: int  # of the shards
    disk: int  # to be written from now on: raw files (as many as are there at a time) and shards
    seconds: float | None  # of the download; None: the bandwidth is not known
    is_enough: bool  # whether all files together hold the tokens that are needed

    def lines(self) -> list[tuple[str, str]]:
        """(what, how much) for a table."""
        time = "unknown" if self.seconds is None else _duration(self.seconds)
        return [
            ("files", f"{self.files:,} of {self.files_there:,}"),
            (
                "raw data",
                f"{self.raw / 1e9:,.1f} GB" + (f" + {self.held_out / 1e9:.1f} GB held out" * bool(self.held_out)),
            ),
            ("still to download", f"{self.download / 1e9:,.1f} GB"),
            ("tokens in them", f"{self.tokens / 1e9:,.2f}B, {self.token_bytes / 1e9:,.1f} GB"),
            ("disk needed", f"{self.disk / 1e9:,.1f} GB"),
            ("time to download", time),
        ]


def estimate(
    source: Remotes,
    tokens_needed: int | None,
    *,
    bytes_per_token: int = 2,
    bandwidth: float | None = None,
    tokens_per_raw_byte: float | None = None,
    held_out: Remotes | None = None,
    workers: int = 1,
) -> Estimate:
    """What it takes to have `tokens_needed` tokens of a source (None: all of it), from its listing.

    Args:
        source: a `HubSource` that is resolved.
        bytes_per_token: of the shards, 2 or 4.
        bandwidth: bytes a second that come in; None: not known.
        tokens_per_raw_byte: as measured on the files that are tokenized; None: the source's own guess.
        held_out: its `held_out()`.
        workers: processes that tokenize; with `keep_raw: false` so many raw files more are on the disk at a time.
    """
    ratio = tokens_per_raw_byte or source.tokens_per_raw_byte
    remotes = source.remotes()
    count, raw = 0, 0
    while count < len(remotes) and (tokens_needed is None or raw * ratio < tokens_needed):
        raw += remotes[count].size
        count += 1
    used, others = remotes[:count], held_out.remotes() if held_out is not None else []
    missing = [remote.size for remote in [*used, *others] if not remote.is_here()]
    at_a_time = len(missing) if source.keep_raw else source.parallel_downloads + 2 * workers
    held_out_bytes = sum(remote.size for remote in others)
    tokens = int(raw * ratio)
    token_bytes = tokens * bytes_per_token
    return Estimate(
        files=count,
        files_there=len(remotes),
        raw=raw,
        held_out=held_out_bytes,
        download=sum(missing),
        tokens=tokens,
        token_bytes=token_bytes,
        disk=sum(sorted(missing, reverse=True)[:at_a_time])
        + token_bytes
        + int(held_out_bytes * ratio) * bytes_per_token,
        seconds=sum(missing) / bandwidth if bandwidth else None,
        is_enough=tokens_needed is None or tokens >= tokens_needed,
    )


def check_disk(need: Estimate, directory: Path, keep_raw: bool = True) -> None:
    """Raise UserError when the disk that holds `directory` has less room than is needed."""
    free = free_bytes(directory)
    if need.disk <= free:
        return
    without_raw = " set `keep_raw: false` to delete each raw file once it is tokenized," if keep_raw else ""
    raise UserError(
        f"{directory}: {need.files:,} files are needed, {need.download / 1e9:,.1f} GB to download and "
        f"{need.token_bytes / 1e9:,.1f} GB of tokens: {need.disk / 1e9:,.1f} GB of disk, of which "
        f"{free / 1e9:,.1f} GB are free;{without_raw} set data.cache_dir to another disk, or train on fewer tokens"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
