"""Documents -> token shards, in worker processes. One part of a source becomes one shard."""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from littlelm.data.files import DigestedFile, write_array
from littlelm.data.sources.base import SourcePart
from littlelm.errors import UserError
from littlelm.tokenizers.base import Tokenizer, usable_cores

DIGEST_BYTES = 16
_BATCH_CHARACTERS = 2_000_000  # text in memory at one time


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 when every id fits, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def content_digest(text: str) -> bytes:
    """16 bytes that identify a document by its content."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def _batches(part: SourcePart) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in part.documents():
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_shard(part: SourcePart, tokenizer: Tokenizer, directory: Path, name: str) -> dict[str, Any]:
    """Tokenize one part into `<name>.tokens`, `<name>.lengths` (int64) and `<name>.digests` (16 bytes a document).

    Every document starts with BOS; one without a token is left out and counted.
    """
    dtype = token_dtype(tokenizer.vocab_size)
    tokens = DigestedFile(directory / f"{name}.tokens")
    lengths: list[int] = []
    digests: list[bytes] = []
    text_bytes = skipped = 0
    for batch in _batches(part):
        pieces = []
        for text, ids in zip(batch, tokenizer.encode_batch(batch, threads=1), strict=True):
            if len(ids) == 0:
                skipped += 1
                continue
            pieces += [np.array([tokenizer.bos_id], dtype=dtype), ids.astype(dtype)]
            lengths.append(len(ids) + 1)
            digests.append(content_digest(text))
            text_bytes += len(text.encode("utf-8", "surrogatepass"))
        if pieces:
            tokens.write(np.concatenate(pieces))
    files = [
        tokens.close(),
        write_array(directory / f"{name}.lengths", np.array(lengths, dtype=np.int64)),
        write_array(directory / f"{name}.digests", np.frombuffer(b"".join(digests), dtype=np.uint8)),
    ]
    return {
        "name": name,
        "documents": len(lengths),
        "tokens": sum(lengths),
        "text_bytes": text_bytes,
        "skipped": skipped,
        "files": files,
    }


def _end_when_closed(alive: Connection) -> None:
    """In a worker: stop at once when the other end of `alive` closes, because its owner failed or was killed."""

    def watch() -> None:
        multiprocessing.connection.wait([alive])
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends its workers
    threading.Thread(target=watch, daemon=True).start()


def tokenize(
    parts: list[SourcePart], tokenizer: Tokenizer, directory: Path, prefix: str, workers: int | str, console: Console
) -> list[dict[str, Any]]:
    """Tokenize every part into a shard of `directory`; returns their manifest entries in order."""
    count = usable_cores() if workers == "auto" else int(workers)
    names = [f"{prefix}-{index:05}" for index in range(len(parts))]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} parts, {task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    done: dict[str, dict[str, Any]] = {}
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as progress:
        task = progress.add_task(f"tokenizing ({min(count, len(parts))} processes)", total=len(parts), rate="")

        def finish(entry: dict[str, Any]) -> None:
            done[entry["name"]] = entry
            elapsed = max(progress.tasks[task].elapsed or 0.0, 1e-3)
            rate = sum(each["text_bytes"] for each in done.values()) / elapsed / 1e6
            progress.update(task, advance=1, rate=f"{rate:.1f} MB/s")

        if count == 1 or len(parts) == 1:
            for part, name in zip(parts, names, strict=True):
                finish(write_shard(part, tokenizer, directory, name))
        else:
            processes = min(count, len(parts))
            # spawn: the parent may have started threads (torch, a progress bar) that must not be forked
            context = multiprocessing.get_context("spawn")
            alive, owner = context.Pipe(duplex=False)
            with (
                alive,
                owner,
                ProcessPoolExecutor(processes, context, initializer=_end_when_closed, initargs=(alive,)) as pool,
            ):
                try:  # from the first submission on: it starts workers
                    futures: list[Future[dict[str, Any]]] = [
                        pool.submit(write_shard, part, tokenizer, directory, name)
                        for part, name in zip(parts, names, strict=True)
                    ]
                    for future in as_completed(futures):
                        finish(future.result())
                except BrokenProcessPool:
                    raise UserError(
                        "a process that tokenizes was killed from outside, most often for want of memory; lower "
                        f"data.workers (now {processes}) or free memory, and run it again"
                    ) from None
                except BaseException:
                    owner.close()  # parts may take minutes: do not wait for those that are being written
                    raise
    return [done[name] for name in names]
