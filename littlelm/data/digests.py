"""Checking prepared files against their recorded digests, on several cores; what was checked is not read again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from littlelm.data.files import check_file
from littlelm.data.prepared import PreparedData
from littlelm.errors import UserError
from littlelm.filesystem import write_atomically
from littlelm.tokenizers.base import usable_cores

Files = Sequence[tuple[Path, dict[str, Any]]]


def check_all(files: Files, console: Console) -> None:
    """Read every file. Raises UserError naming all that are damaged or missing, one a line."""
    problems: list[str] = []

    def check(item: tuple[Path, dict[str, Any]]) -> None:
        try:
            check_file(*item, digest=True)
        except UserError as error:
            problems.append(str(error))
        bar.update(task, advance=item[1]["bytes"])

    columns = (
        TextColumn("checking digests"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with (
        Progress(*columns, console=console, transient=True, disable=console.quiet) as bar,
        ThreadPoolExecutor(usable_cores(), thread_name_prefix="sha256") as pool,  # hashing releases the lock
    ):
        task = bar.add_task("", total=sum(entry["bytes"] for _, entry in files))
        list(pool.map(check, files))
    if problems:
        raise UserError("\n".join(sorted(problems)))


def check_once(files: Files, memory: Path, console: Console) -> None:
    """Check the files that were not checked since they last changed (by inode, size and time of change).

    `memory` is the JSON file that remembers. Raises UserError as `check_all` does.
    """
    try:
        known: dict[str, list[int]] = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # nothing known: everything is read, and the file is written anew
        known = {}
    seen = {}
    for path, entry in files:
        check_file(path, entry, digest=False)
        status = path.stat()
        seen[str(path)] = [status.st_ino, status.st_size, status.st_mtime_ns]
    new = [(path, entry) for path, entry in files if known.get(str(path)) != seen[str(path)]]
    if not new:
        return
    check_all(new, console)
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(memory, json.dumps({**known, **seen}).encode())


def check_offsets(prepared: PreparedData) -> None:
    """Check that lengths, digests and plans fit the tokens they point into. Raises UserError naming all that do not."""
    problems = []
    for shards, plans in zip(prepared.sources, prepared.plans, strict=True):
        for shard, plan in zip(shards, plans, strict=True):
            tokens, lengths = len(shard.tokens), shard.lengths()
            where = shard.directory / f"{shard.name}.lengths"
            if int(lengths.sum()) != tokens or len(lengths) != shard.documents:
                problems.append(f"{where}: {int(lengths.sum())} tokens in documents, {tokens} in the shard")
            starts = np.cumsum(lengths) - lengths
            if len(starts) and not (shard.tokens[starts] == prepared.tokenizer.bos_id).all():
                problems.append(f"{where}: a document does not begin with BOS")
            ends = plan.start.astype(np.int64) + plan.length
            if (len(ends) and int(ends.max()) > tokens) or not (np.diff(plan.first.astype(np.int64)) >= 0).all():
                problems.append(f"{plan.directory / shard.name}.start.npy: points outside of the shard")
    if problems:
        raise UserError("\n".join(problems))
